/* Any bytes as a config.json: refused with a message, or fields that keep to their ranges. */
#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "core/base/json_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_fields(const cJSON *object)
{
    static const char *const keys[] = {"hidden_size", "layer_norm_eps", "hidden_act", "tie", ""};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int64_t whole = 7;
        double number = 0.5;
        bool flag = false;
        const char *string = "none";
        mc_error err = {0};
        bool good = mc_json_get_int(&err, object, "fuzz", keys[i], 1, 65536, &whole);
        assert(whole >= 1 && whole <= 65536 && good != mc_error_is_set(&err));
        mc_json_get_int(&err, object, "fuzz", keys[i], INT64_MIN, INT64_MAX, &whole);
        mc_json_get_number(&err, object, "fuzz", keys[i], -1, INFINITY, &number);
        assert(number >= -1);
        mc_json_get_bool(&err, object, "fuzz", keys[i], &flag);
        mc_json_get_string(&err, object, "fuzz", keys[i], &string);
        assert(mc_utf8_is_valid(string, strlen(string)));
        mc_error_clear(&err);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mc_error err = {0};
    cJSON *value = mc_json_parse(&err, (const char *)data, size, "fuzz", 1);
    assert((value == NULL) == mc_error_is_set(&err));
    if (value)
        read_fields(value);
    else
        assert(strstr(err.message, "fuzz:"));
    cJSON_Delete(value);
    mc_error_clear(&err);
    cJSON *row = mc_json_parse_row(&err, (const char *)data, size, "fuzz", 1, true);
    assert(row || !value); /* a row may hold more */
    cJSON_Delete(row);
    mc_error_clear(&err);
    return 0;
}

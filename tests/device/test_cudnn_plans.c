/* The attention graphs get plans from cuDNN, which needs no GPU for that: it is told the properties
 * of one, and a stand-in for the driver is enough if there is none. Whether the plans compute
 * attention is test_cuda_attention.c's question. Skipped where cuDNN is not installed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>

#ifndef MC_HAVE_CUDA
int main(void)
{
    printf("SKIPPED: cuDNN plans: built without CUDA\n");
    return 0;
}
#else

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/device/cuda/runtime/cudnn_internal.h"
#include "tests/temp_folder.h"
#if __has_include(<cudnn.h>)
#include <cudnn.h>
#define SAME(name, value) _Static_assert((int)CUDNN_##name == (value), #name);
MC_CUDNN_CONSTANTS(SAME)
_Static_assert(sizeof(cudnnStatus_t) == sizeof(int), "enumerations are passed as int");
_Static_assert(sizeof(cudnnBackendAttributeName_t) == sizeof(int), "enumerations are int");
#endif

/* What cuDNN says of an H200 (attribute DEVICEPROP_JSON_REPRESENTATION). */
static const char h200[] =
    "{\"deviceVer\":900,\"multiProcessorCount\":132,\"driverVer\":13000,"
    "\"maxSharedMemoryPerBlockOptin\":232448,\"totalGlobalMem\":150000000000,\"cudaDeviceId\":0,"
    "\"deviceName\":\"NVIDIA H200\",\"maxGridSize\":[2147483647,65535,65535],"
    "\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,\"smClockRateKHz\":1980000,"
    "\"memClockRateKHz\":3201000,\"l2CacheSize\":62914560,\"warpSize\":32,"
    "\"maxSharedMemoryPerBlock\":49152,\"reservedSharedMemoryPerBlock\":1024,"
    "\"maxRegistersPerSM\":65536,\"pciDeviceId\":0,\"maxCtasPerSM\":32,"
    "\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"isTccDriver\":0,"
    "\"supportCoopLaunch\":1}";

static mc_cudnn cudnn;
static bool has_driver;

static int load(void **state)
{
    (void)state;
    char why[384] = "";
    has_driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!has_driver && !dlopen(MC_FAKE_LIBCUDA, RTLD_NOW | RTLD_GLOBAL)) {
        fprintf(stderr, "%s\n", dlerror());
        return -1;
    }
    if (!mc_cudnn_load(&cudnn, why, sizeof why) ||
        !mc_cudnn_describe_gpu(&cudnn, h200, why, sizeof why)) {
        fprintf(stderr, "%s\n", why);
        return -1;
    }
    printf("cuDNN %zu\n", cudnn.version);
    return 0;
}

static int unload(void **state)
{
    (void)state;
    mc_cudnn_unload(&cudnn);
    return 0;
}

static mc_sdpa_key key_of(int batch, int heads, int length, int head_dim)
{
    mc_sdpa_key key;
    memset(&key, 0, sizeof key);
    key.dtype = MC_CUDNN_DATA_BFLOAT16;
    key.batch = batch;
    key.heads = key.key_heads = heads;
    key.length = key.key_length = length;
    key.head_dim = head_dim;
    key.q_stride = key.kv_stride = 3 * (int64_t)heads * head_dim;
    key.out_stride = (int64_t)heads * head_dim;
    return key;
}

/* The ids a run gives are those of the graph's tensors that are not virtual. */
static void assert_ids(const mc_cudnn_graph *graph, const mc_sdpa_key *key)
{
    int64_t ids[MC_SDPA_IDS];
    int count = mc_sdpa_ids(key, ids), found = 0;
    assert_true(count <= MC_SDPA_IDS);
    for (int i = 0; i < graph->tensor_count; i++) {
        if (graph->tensors[i].id >= MC_CUDNN_FIRST_VIRTUAL) continue;
        int matches = 0;
        for (int j = 0; j < count; j++) matches += ids[j] == graph->tensors[i].id;
        assert_int_equal(matches, 1);
        found++;
    }
    assert_int_equal(found, count);
}

static mc_cudnn_descriptor plan_of(const mc_sdpa_key *key)
{
    mc_cudnn_graph graph;
    mc_cudnn_graph_init(&graph, &cudnn);
    mc_sdpa_graph(&graph, key);
    assert_string_equal(graph.error, "");
    assert_ids(&graph, key);
    mc_cudnn_descriptor plan = mc_cudnn_plan_new(&graph);
    if (!plan)
        fail_msg("backward %d causal %d left %d right %d bottom right %d ragged %d bias %d apart "
                 "%d deterministic %d packed %d dropout %g, (%d, %d, %d, %d, %d): %s",
                 key->backward, key->causal, key->left, key->right, key->bottom_right, key->ragged,
                 key->bias, key->apart, key->deterministic, key->packed_sum, (double)key->dropout,
                 key->batch, key->heads, key->length, key->key_length, key->head_dim, graph.error);
    mc_cudnn_graph_release(&graph);
    return plan;
}

/* Forward too, unless the key says what only backward asks. */
static void assert_plans(mc_sdpa_key key)
{
    if (!key.deterministic && !key.packed_sum) mc_cudnn_plan_free(&cudnn, plan_of(&key));
    key.backward = 1;
    if (key.bias) key.deterministic = 1;
    mc_cudnn_plan_free(&cudnn, plan_of(&key));
}

/* cuDNN compiles kernels for each plan, which takes a second or two. Where no GPU runs them, half
 * of the forms with four options are enough: those with an even number of options on, in which any
 * three options come in all their combinations. */
static bool is_spared(int form) { return !has_driver && __builtin_parity((unsigned)form); }

/* Every form of graph at one shape. */
static void test_forms(void **state)
{
    (void)state;
    mc_sdpa_key key = key_of(8, 12, 128, 64);
    for (int form = 0; form < 16; form++) {
        key.causal = form & 1;
        key.ragged = (form & 2) != 0;
        key.dropout = form & 4 ? 0.1f : 0;
        key.deterministic = (form & 8) != 0;
        if (!is_spared(form)) assert_plans(key);
    }
    key = key_of(8, 12, 128, 64);
    key.ragged = key.packed_sum = 1;
    assert_plans(key);
}

/* With a bias, and of queries against other keys. */
static void test_bias_and_cross(void **state)
{
    (void)state;
    for (int form = 1; form < 16; form++) {
        mc_sdpa_key key = key_of(8, 12, 128, 64);
        key.bias = form & 1;
        key.ragged = (form & 4) != 0;
        if (form & 2) {
            key.apart = key.ragged;
            key.key_length = 192;
            key.q_stride = key.out_stride;
            key.kv_stride = 2 * key.out_stride;
        }
        key.dropout = form & 8 ? 0.1f : 0;
        if (form % 4 && !is_spared(form)) assert_plans(key);
    }
    mc_sdpa_key odd = key_of(8, 8, 77, 64); /* sizes of a bias are what they are */
    odd.bias = odd.ragged = odd.causal = 1;
    odd.key_length = 93;
    odd.apart = 1;
    assert_plans(odd);
}

/* Heads that share keys: Llama 3.2 1B's, and one for all. */
static void test_grouped(void **state)
{
    (void)state;
    for (int form = 0; form < 4; form++) {
        mc_sdpa_key key = key_of(2, 32, 256, form & 2 ? 128 : 64);
        key.key_heads = form & 1 ? 8 : 1;
        key.q_stride = key.kv_stride = (int64_t)(32 + 2 * key.key_heads) * key.head_dim;
        key.causal = 1;
        key.deterministic = form == 3;
        assert_plans(key);
    }
}

/* Windows: causal, to both sides, to one; of a grid, also of grouped heads, and ragged. */
static void test_windows(void **state)
{
    (void)state;
    for (int form = 1; form < 16; form++) {
        mc_sdpa_key key = key_of(2, 4, 256, 64);
        key.left = form & 1;
        key.right = (form & 2) != 0;
        key.ragged = (form & 4) != 0;
        key.causal = !key.right && form & 8;
        if (key.right && form & 8) key.dropout = 0.1f;
        if (!key.ragged && !key.dropout) key.key_heads = 2;
        if ((key.left || key.right) && !is_spared(form)) assert_plans(key);
    }
    mc_sdpa_key key = key_of(2, 4, 256, 64);
    key.left = key.causal = key.bias = 1;
    assert_plans(key);
}

/* Fewer queries than keys, of which the last stand side by side: causal, and with windows. */
static void test_bottom_right(void **state)
{
    (void)state;
    for (int form = 1; form < 16; form++) {
        mc_sdpa_key key = key_of(2, 4, 256, 64);
        key.length = 128;
        key.q_stride = key.out_stride;
        key.kv_stride = 2 * key.out_stride;
        key.bottom_right = 1;
        key.left = form & 1;
        key.right = (form & 2) != 0;
        key.ragged = key.apart = (form & 4) != 0;
        key.causal = !key.right && form & 8;
        if (!key.ragged && form & 8) key.key_heads = 1;
        /* of a grid with a window to the left alone the place is a part of MC_SDPA_LEFT */
        bool has_place = key.causal || key.right || (key.left && key.ragged);
        if (has_place && !is_spared(form)) assert_plans(key);
    }
}

/* GPT-2's sizes, sequences of one token, and head sizes from 8 to 256. */
static void test_shapes(void **state)
{
    (void)state;
    const int shapes[][4] = {{64, 12, 1024, 64}, {16, 25, 1024, 64}, {1, 1, 64, 8},
                             {3, 5, 192, 80},    {2, 2, 128, 256},   {32, 12, 8192, 128}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int *s = shapes[i];
        mc_sdpa_key key = key_of(s[0], s[1], s[2], s[3]);
        key.causal = 1;
        if (i % 2) key.dtype = MC_CUDNN_DATA_HALF;
        assert_plans(key);
    }
}

/* How many further plans of a key there are, up to `most`; each is one. */
static int count_others(const mc_sdpa_key *key, int most)
{
    mc_cudnn_graph graph;
    mc_cudnn_descriptor plans[8];
    mc_cudnn_graph_init(&graph, &cudnn);
    mc_sdpa_graph(&graph, key);
    int count = mc_cudnn_other_plans(&graph, most, plans);
    assert_true(count <= most);
    for (int i = 0; i < count; i++) {
        assert_non_null(plans[i]);
        for (int j = 0; j < i; j++) assert_true(plans[i] != plans[j]);
        assert_in_range(mc_cudnn_plan_workspace(&cudnn, plans[i]), 0, 1 << 20);
        mc_cudnn_plan_free(&cudnn, plans[i]);
    }
    mc_cudnn_graph_release(&graph);
    return count;
}

/* Whether an engine has several plans is cuDNN's own affair: 9.19.0 has two for heads of 256. */
static void test_other_plans(void **state)
{
    (void)state;
    mc_sdpa_key key = key_of(2, 2, 128, 256);
    key.causal = 1;
    int count = count_others(&key, 8);
    if (cudnn.version == 91900) assert_int_equal(count, 1);
    assert_int_equal(count_others(&key, 0), 0);
    key = key_of(2, 2, 128, 12); /* that no engine takes */
    assert_int_equal(count_others(&key, 8), 0);
}

/* A head size that no engine takes: a reason, no plan. */
static void test_refusal(void **state)
{
    (void)state;
    mc_sdpa_key key = key_of(2, 2, 128, 12);
    mc_cudnn_graph graph;
    mc_cudnn_graph_init(&graph, &cudnn);
    mc_sdpa_graph(&graph, &key);
    assert_null(mc_cudnn_plan_new(&graph));
    assert_true(strlen(graph.error) > 8);
    mc_cudnn_graph_release(&graph);
}

/* A plan comes back from its file, and only whole and under its title. */
static void test_files(void **state)
{
    (void)state;
    temp_folder folder = temp_folder_new();
    char path[1024];
    snprintf(path, sizeof path, "%s", temp_path(&folder, "plan"));
    write_bytes(path, "", 0);
    mc_sdpa_key key = key_of(8, 12, 128, 64);
    key.backward = key.deterministic = 1;
    mc_cudnn_descriptor plan = plan_of(&key), again;
    int64_t workspace = mc_cudnn_plan_workspace(&cudnn, plan);
    assert_int_equal(workspace, 256 + 2 * 8 * 12 * 128 * 128);
    assert_null(mc_cudnn_plan_load(&cudnn, path, "title")); /* empty */
    mc_cudnn_plan_store(&cudnn, plan, path, "title");
    mc_cudnn_plan_free(&cudnn, plan);
    again = mc_cudnn_plan_load(&cudnn, path, "title");
    assert_non_null(again);
    assert_int_equal(mc_cudnn_plan_workspace(&cudnn, again), workspace);
    mc_cudnn_plan_free(&cudnn, again);
    assert_null(mc_cudnn_plan_load(&cudnn, path, "another"));
    assert_null(mc_cudnn_plan_load(&cudnn, path, "titl"));

    static char bytes[1 << 20];
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t size = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    assert_true(size > 10000 && size < sizeof bytes);
    const size_t cuts[] = {3, 6, 20, size / 2, size - 1};
    for (int i = 0; i < 5; i++) {
        write_bytes(path, bytes, cuts[i]);
        assert_null(mc_cudnn_plan_load(&cudnn, path, "title"));
    }
    bytes[size / 2] ^= 4;
    write_bytes(path, bytes, size);
    assert_null(mc_cudnn_plan_load(&cudnn, path, "title"));
    unlink(path);
    assert_null(mc_cudnn_plan_load(&cudnn, path, "title"));
    plan = plan_of(&key);
    mc_cudnn_plan_store(&cudnn, plan, temp_path(&folder, "no/folder"), "title"); /* no error */
    mc_cudnn_plan_free(&cudnn, plan);
    temp_folder_free(&folder);
}

int main(void)
{
    void *library = dlopen("libcudnn.so.9", RTLD_LAZY);
    if (!library) {
        printf("SKIPPED: cuDNN plans: %s\n", dlerror());
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),        cmocka_unit_test(test_bias_and_cross),
        cmocka_unit_test(test_grouped),      cmocka_unit_test(test_windows),
        cmocka_unit_test(test_bottom_right), cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_other_plans),  cmocka_unit_test(test_refusal),
        cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
#endif

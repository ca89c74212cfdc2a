/* A small SentencePiece model, byte by byte, for the tests of Unigram tokenizers. Include after
 * tokenizer_test.h. */
#ifndef MC_TESTS_UNIGRAM_TEST_H
#define MC_TESTS_UNIGRAM_TEST_H

#define SP "\xE2\x96\x81" /* the space's symbol */

typedef struct piece {
    const char *text;
    float score;
    int type; /* mc_piece_type */
} piece;

/* What the file says beside its pieces; -1: nothing. */
typedef struct model_settings {
    int type, suffix, byte_fallback, dummy_prefix, squeeze, escape;
    const void *table;
    size_t table_size;
} model_settings;

static const model_settings plain_settings = {-1, -1, -1, -1, -1, -1, NULL, 0};

enum { PAD, EOS, UNK, SPACE, A, B, S_A, AB, S_AB, DASH, DASHES, C, PIECES };
static const piece small_pieces[PIECES] = {
    {"<pad>", 0, MC_PIECE_CONTROL}, {"</s>", 0, MC_PIECE_CONTROL}, {"<unk>", 0, MC_PIECE_UNKNOWN},
    {SP, -2, MC_PIECE_NORMAL},      {"a", -3, MC_PIECE_NORMAL},    {"b", -3.5F, MC_PIECE_NORMAL},
    {SP "a", -4, MC_PIECE_NORMAL},  {"ab", -5, MC_PIECE_NORMAL},   {SP "ab", -6, MC_PIECE_NORMAL},
    {"-", -5.1F, MC_PIECE_NORMAL},  {"---", -12, MC_PIECE_NORMAL}, {"c", -9, MC_PIECE_NORMAL},
};

static inline void put_varint(mc_bytes *out, uint64_t value)
{
    do {
        uint8_t byte = (uint8_t)((value & 0x7F) | (value > 0x7F ? 0x80 : 0));
        assert_true(mc_bytes_append(out, &byte, 1));
    } while (value >>= 7);
}

static inline void put_field(mc_bytes *out, unsigned number, const void *data, size_t size)
{
    put_varint(out, number << 3 | 2);
    put_varint(out, size);
    assert_true(mc_bytes_append(out, data, size));
}

static inline void put_number(mc_bytes *out, unsigned number, int value)
{
    if (value < 0) return;
    put_varint(out, number << 3);
    put_varint(out, (uint64_t)value);
}

static inline void put_piece(mc_bytes *out, const piece *p)
{
    mc_bytes inside = {0};
    uint32_t bits;
    put_field(&inside, 1, p->text, strlen(p->text));
    memcpy(&bits, &p->score, sizeof bits);
    put_varint(&inside, 2 << 3 | 5);
    for (int i = 0; i < 4; i++) {
        uint8_t byte = (uint8_t)(bits >> 8 * i);
        assert_true(mc_bytes_append(&inside, &byte, 1));
    }
    put_number(&inside, 3, p->type);
    put_field(out, 1, inside.data, inside.count);
    mc_bytes_release(&inside);
}

static inline mc_bytes build_model(const piece *pieces, size_t count, const model_settings *s)
{
    mc_bytes out = {0}, trainer = {0}, normalizer = {0};
    for (size_t i = 0; i < count; i++) put_piece(&out, &pieces[i]);
    put_number(&trainer, 3, s->type);
    put_number(&trainer, 24, s->suffix);
    put_number(&trainer, 35, s->byte_fallback);
    put_field(&out, 2, trainer.data, trainer.count);
    if (s->table) put_field(&normalizer, 2, s->table, s->table_size);
    put_number(&normalizer, 3, s->dummy_prefix);
    put_number(&normalizer, 4, s->squeeze);
    put_number(&normalizer, 5, s->escape);
    put_field(&out, 3, normalizer.data, normalizer.count);
    mc_bytes_release(&trainer);
    mc_bytes_release(&normalizer);
    return out;
}

static inline void write_model(const piece *pieces, size_t count, const model_settings *s)
{
    mc_bytes model = build_model(pieces, count, s);
    write_bytes(temp_path(&folder, "spiece.model"), model.data, model.count);
    mc_bytes_release(&model);
}

/* With no sentinels, so that ids are those of the pieces. */
static inline mc_tokenizer *open_model(const piece *pieces, size_t count, const model_settings *s)
{
    write_text(temp_path(&folder, "tokenizer_config.json"), "{\"extra_ids\": 0}");
    write_model(pieces, count, s);
    return open_folder();
}

static inline mc_tokenizer *open_small(void)
{
    return open_model(small_pieces, PIECES, &plain_settings);
}

#endif

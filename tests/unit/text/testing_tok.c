/* Small tokenizers for the tests; see testing_tok.h. */
#include "testing_tok.h"

#include "testing.h"

#include "base/limits.h"

uint64_t dice_roll(struct dice *d, uint64_t below)
{
    d->state += 0x9E3779B97F4A7C15u; /* splitmix64 */
    uint64_t z = d->state;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (z ^ z >> 31) % below;
}

#define NAMES_MAX 4096

static struct {
    char bytes[NAMES_MAX][96];
    size_t n[NAMES_MAX];
    uint32_t left[NAMES_MAX], right[NAMES_MAX], order[NAMES_MAX];
} made; /* one test at a time */

static bool is_made(const char *p, size_t n, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (made.n[i] == n && memcmp(made.bytes[i], p, n) == 0)
            return true;
    return false;
}

static size_t make_names(struct dice *d, size_t n_merges)
{
    size_t count = 256, tries = 0;
    for (size_t i = 0; i < 256; i++)
        made.n[i] = byte_spell((unsigned char)i, made.bytes[i]);
    while (count < 256 + n_merges && tries++ < 100000) {
        /* mostly over a few bytes, so that the words of the tests meet merges */
        const size_t a = dice_roll(d, 2)   ? (size_t)('a' + dice_roll(d, 4))
                         : dice_roll(d, 3) ? 256 + dice_roll(d, count - 255) - 1
                                           : dice_roll(d, 256);
        const size_t b = dice_roll(d, 2)   ? (size_t)('a' + dice_roll(d, 4))
                         : dice_roll(d, 3) ? 256 + dice_roll(d, count - 255) - 1
                                           : dice_roll(d, 256);
        char joined[192];
        if (a >= count || b >= count || made.n[a] + made.n[b] > sizeof made.bytes[0])
            continue;
        memcpy(joined, made.bytes[a], made.n[a]);
        memcpy(joined + made.n[a], made.bytes[b], made.n[b]);
        if (is_made(joined, made.n[a] + made.n[b], count))
            continue;
        memcpy(made.bytes[count], joined, made.n[a] + made.n[b]);
        made.n[count] = made.n[a] + made.n[b];
        made.left[count] = (uint32_t)a;
        made.right[count] = (uint32_t)b;
        count++;
    }
    return count;
}

void json_byte_level(struct buf *out, uint64_t seed, size_t n_merges, bool shuffled, const char *rest)
{
    struct dice d = {seed};
    const size_t count = make_names(&d, n_merges);
    for (size_t i = 256; i < count; i++) {
        const size_t j = shuffled ? 256 + dice_roll(&d, i - 255) : i;
        made.order[i] = made.order[j];
        made.order[j] = (uint32_t)i;
    }
    buf_addf(out, "{%s\"added_tokens\":[", rest);
    static const char *const added[] = {"<|begin|>", "<|end|>", "<think>"};
    for (size_t i = 0; i < 3; i++)
        buf_addf(out, "%s{\"id\":%zu,\"content\":\"%s\",\"special\":%s,\"normalized\":false}", i > 0 ? "," : "",
            count + i, added[i], i < 2 ? "true" : "false");
    buf_add(out, STR("],\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},"));
    buf_add(out, STR("\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{"));
    for (size_t i = 0; i < count; i++) {
        buf_add(out, i > 0 ? STR(",") : STR(""));
        buf_add_json_str(out, (struct str){made.bytes[i], made.n[i]});
        buf_addf(out, ":%zu", i);
    }
    buf_add(out, STR("},\"merges\":["));
    for (size_t i = 256; i < count; i++) {
        const uint32_t m = made.order[i];
        buf_add(out, i > 256 ? STR(",[") : STR("["));
        buf_add_json_str(out, (struct str){made.bytes[made.left[m]], made.n[made.left[m]]});
        buf_add_char(out, ',');
        buf_add_json_str(out, (struct str){made.bytes[made.right[m]], made.n[made.right[m]]});
        buf_add_char(out, ']');
    }
    buf_add(out, STR("]}}"));
}

struct tok *tok_of(struct buf *json)
{
    struct tok *t;
    struct error e = {0};
    assert_ok(e, tok_from_json(buf_str(json), (struct str){"", 0}, &t, &e));
    return t;
}

struct tok *tok_byte_level(uint64_t seed, size_t n_merges, bool shuffled, const char *rest)
{
    struct buf json;
    buf_init(&json, 16 * MIB);
    json_byte_level(&json, seed, n_merges, shuffled, rest);
    struct tok *t = tok_of(&json);
    buf_fini(&json);
    return t;
}

struct tok_ctx *ctx_of(void)
{
    struct tok_ctx *c;
    struct error e = {0};
    assert_ok(e, tok_ctx_new(&c, &e));
    return c;
}

const char *ids_text(const struct tok *t, struct tok_ctx *c, const struct tok_part *parts, size_t n, bool special)
{
    static char text[65536];
    struct tok_ids ids;
    struct error e = {0};
    assert_ok(e, tok_encode(t, c, parts, n, special, &ids, &e));
    size_t at = 0;
    text[0] = 0;
    for (size_t i = 0; i < ids.n && at + 16 < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%u", i > 0 ? " " : "", ids.p[i]);
    return text;
}

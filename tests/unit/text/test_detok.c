/* The streaming detokeniser against a slow definition of the same thing: random texts, random cuts into tokens, random
 * stops. The vocabulary of a case is made from the cuts, so no tokenizer is needed. */
#include "testing.h"

#include "base/limits.h"
#include "base/mem.h"
#include "text/detok.h"

#include <stdlib.h>

#define TEXT_MAX   512
#define TOKENS_MAX 256

/* A vocabulary written by hand: add pieces, then use .view. */
struct vocab {
    char bytes[4096];
    uint32_t offsets[TOKENS_MAX + 1];
    uint8_t flags[TOKENS_MAX];
    struct vocab_view view;
};

static void vocab_reset(struct vocab *v)
{
    v->view = (struct vocab_view){0, v->bytes, v->offsets, v->flags};
    v->offsets[0] = 0;
}

static uint32_t vocab_add(struct vocab *v, struct str piece, uint8_t flags)
{
    const uint32_t id = v->view.n++;
    assert_true(id < TOKENS_MAX && v->offsets[id] + piece.n <= sizeof v->bytes);
    memcpy(v->bytes + v->offsets[id], piece.p, piece.n);
    v->offsets[id + 1] = v->offsets[id] + (uint32_t)piece.n;
    v->flags[id] = flags;
    return id;
}

static const struct tok_lead no_lead = {0, false};

static uint64_t rng_state;

static uint32_t draw(uint32_t below)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((rng_state >> 33) % below);
}

static struct stop_set *stops_of(const struct str *stops, size_t n)
{
    struct error err;
    struct stop_set *s = NULL;
    assert_ok(err, stop_set_new(&s, stops, n, &err));
    return s;
}

/* Feed every token of v in order, end, and compare text and cut. */
static void expect_text(const struct vocab *v, struct tok_lead lead, const struct stop_set *s, struct detok_opts o,
    const char *text, uint64_t bytes)
{
    struct error err;
    struct buf out;
    struct detok d, quiet;
    buf_init(&out, MIB);
    detok_init(&d, &v->view, lead, s, o);
    detok_init(&quiet, &v->view, lead, s, o);
    for (uint32_t id = 0; id < v->view.n; id++) {
        assert_ok(err, detok_feed(&d, id, &out, &err));
        assert_ok(err, detok_feed(&quiet, id, NULL, &err));
        assert_int_equal(d.stopped, quiet.stopped);
        assert_int_equal(d.bytes, quiet.bytes);
    }
    assert_ok(err, detok_end(&d, &out, &err));
    assert_int_equal(out.n, strlen(text));
    if (out.n > 0)
        assert_memory_equal(out.p, text, out.n);
    assert_int_equal(d.bytes, bytes);
    assert_int_equal(detok_held(&d), 0);
    buf_fini(&out);
}

/* ---- by hand ---- */

static void character_cut_over_tokens_comes_out_whole(void **state)
{
    (void)state;
    struct error err;
    struct vocab v;
    struct buf out;
    struct detok d;
    vocab_reset(&v);
    vocab_add(&v, STR("a\xF0\x9F"), 0);
    vocab_add(&v, STR("\x91"), VOCAB_BYTE);
    vocab_add(&v, STR("\x8D!"), 0);
    buf_init(&out, MIB);
    detok_init(&d, &v.view, no_lead, NULL, (struct detok_opts){0});
    assert_ok(err, detok_feed(&d, 0, &out, &err));
    assert_int_equal(out.n, 1);
    assert_int_equal(detok_held(&d), 2);
    assert_ok(err, detok_feed(&d, 1, &out, &err));
    assert_int_equal(out.n, 1);
    assert_ok(err, detok_feed(&d, 2, &out, &err));
    assert_int_equal(out.n, 6);
    assert_memory_equal(out.p, "a\xF0\x9F\x91\x8D!", 6);
    buf_fini(&out);
}

static void unfinished_character_at_the_end_is_one_replacement(void **state)
{
    (void)state;
    struct vocab v;
    vocab_reset(&v);
    vocab_add(&v, STR("x\xF0\x9F\x91"), 0);
    expect_text(&v, no_lead, NULL, (struct detok_opts){0}, "x\xEF\xBF\xBD", 4);
}

static void invalid_bytes_are_replaced_per_maximal_part(void **state)
{
    (void)state;
    struct vocab v;
    vocab_reset(&v);
    vocab_add(&v, STR("\xE4\xBD"), 0);          /* cut by the next token's letter: one */
    vocab_add(&v, STR("a\x80\xC0"), 0);         /* stray and never valid: one each */
    vocab_add(&v, STR("\xAF\xED\xA0\x80z"), 0); /* C0 AF: one each; surrogate: three */
    expect_text(&v, no_lead, NULL, (struct detok_opts){0},
        "\xEF\xBF\xBD"
        "a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDz",
        10);
}

static void lead_space_goes_once_and_only_at_the_start_of_a_text(void **state)
{
    (void)state;
    struct vocab v;
    vocab_reset(&v);
    vocab_add(&v, STR("<s>"), VOCAB_SPECIAL);
    vocab_add(&v, STR("  a"), 0);
    vocab_add(&v, STR(" b"), 0);
    expect_text(&v, (struct tok_lead){1, false}, NULL, (struct detok_opts){0}, " a b", 4);
    expect_text(&v, (struct tok_lead){9, false}, NULL, (struct detok_opts){0}, "a b", 3);
    expect_text(&v, (struct tok_lead){1, false}, NULL, (struct detok_opts){.continues = true}, "  a b", 5);
    expect_text(&v, (struct tok_lead){1, false}, NULL, (struct detok_opts){.show_special = true}, "<s>  a b", 8);
}

static void lead_rule_over_tokens_stops_at_the_first_when_asked(void **state)
{
    (void)state;
    struct vocab v;
    vocab_reset(&v);
    vocab_add(&v, STR(" "), 0);
    vocab_add(&v, STR(" a"), 0);
    expect_text(&v, (struct tok_lead){2, true}, NULL, (struct detok_opts){0}, " a", 2);
    expect_text(&v, (struct tok_lead){2, false}, NULL, (struct detok_opts){0}, "a", 1);
}

static void stop_over_three_tokens_cuts_exactly(void **state)
{
    (void)state;
    struct vocab v;
    vocab_reset(&v);
    vocab_add(&v, STR("one S"), 0);
    vocab_add(&v, STR("TO"), 0);
    vocab_add(&v, STR("P two"), 0);
    vocab_add(&v, STR("never"), 0);
    struct stop_set *s = stops_of((struct str[]){STR("STOP")}, 1);
    expect_text(&v, no_lead, s, (struct detok_opts){0}, "one ", 4);
    expect_text(&v, no_lead, s, (struct detok_opts){.include_stop = true}, "one STOP", 8);
    stop_set_free(s);
}

static void first_stop_to_end_wins_and_of_those_the_longest(void **state)
{
    (void)state;
    struct vocab v;
    vocab_reset(&v);
    vocab_add(&v, STR("xabcd"), 0);
    struct stop_set *s = stops_of((struct str[]){STR("abcd"), STR("c"), STR("bc")}, 3);
    expect_text(&v, no_lead, s, (struct detok_opts){0}, "xa", 2); /* "bc" and "c" end before "abcd" */
    stop_set_free(s);
}

static void stop_equal_to_the_whole_output_leaves_nothing(void **state)
{
    (void)state;
    struct vocab v;
    vocab_reset(&v);
    vocab_add(&v, STR("\n"), 0);
    vocab_add(&v, STR("\n"), 0);
    struct stop_set *s = stops_of((struct str[]){STR("\n\n")}, 1);
    expect_text(&v, no_lead, s, (struct detok_opts){0}, "", 0);
    expect_text(&v, no_lead, s, (struct detok_opts){.include_stop = true}, "\n\n", 2);
    stop_set_free(s);
}

static void stop_that_begins_inside_a_character_leaves_a_replacement(void **state)
{
    (void)state;
    struct vocab v;
    vocab_reset(&v);
    vocab_add(&v, STR("a\xE4\xBD\xA0"), 0);
    struct stop_set *s = stops_of((struct str[]){STR("\xBD\xA0")}, 1);
    expect_text(&v, no_lead, s, (struct detok_opts){0}, "a\xEF\xBF\xBD", 2);
    expect_text(&v, no_lead, s, (struct detok_opts){.include_stop = true}, "a\xE4\xBD\xA0", 4);
    stop_set_free(s);
}

static void stop_prefix_that_fails_is_given_back(void **state)
{
    (void)state;
    struct vocab v;
    vocab_reset(&v);
    vocab_add(&v, STR("aab"), 0);
    vocab_add(&v, STR("aac"), 0);
    vocab_add(&v, STR("aab"), 0);
    struct stop_set *s = stops_of((struct str[]){STR("aabaab")}, 1);
    expect_text(&v, no_lead, s, (struct detok_opts){0}, "aabaacaab", 9);
    stop_set_free(s);
}

static void special_token_between_does_not_hide_a_stop(void **state)
{
    (void)state;
    struct vocab v;
    vocab_reset(&v);
    vocab_add(&v, STR("xE"), 0);
    vocab_add(&v, STR("<eot>"), VOCAB_SPECIAL);
    vocab_add(&v, STR("ND"), 0);
    struct stop_set *s = stops_of((struct str[]){STR("END")}, 1);
    expect_text(&v, no_lead, s, (struct detok_opts){0}, "x", 1);
    expect_text(&v, no_lead, s, (struct detok_opts){.show_special = true}, "xE<eot>ND", 9);
    stop_set_free(s);
}

/* Within the first ids stops are passed over; one that ends behind them counts wherever it begins. */
static void stops_below_the_least_ids_are_passed_over(void **state)
{
    (void)state;
    struct vocab v;
    vocab_reset(&v);
    for (size_t i = 0; i < 6; i++)
        vocab_add(&v, i % 2 == 0 ? STR("aS") : STR("Tb"), 0);
    struct stop_set *s = stops_of((struct str[]){STR("ST"), STR("Sx"), STR("bb")}, 3);
    expect_text(&v, no_lead, s, (struct detok_opts){0}, "a", 1);
    expect_text(&v, no_lead, s, (struct detok_opts){.min_ids = 1}, "a", 1);
    expect_text(&v, no_lead, s, (struct detok_opts){.min_ids = 2}, "aSTba", 5);
    expect_text(&v, no_lead, s, (struct detok_opts){.min_ids = 3}, "aSTba", 5);
    expect_text(&v, no_lead, s, (struct detok_opts){.min_ids = 5}, "aSTbaSTba", 9);
    expect_text(&v, no_lead, s, (struct detok_opts){.min_ids = 6}, "aSTbaSTbaSTb", 12);
    expect_text(&v, no_lead, s, (struct detok_opts){.min_ids = UINT32_MAX}, "aSTbaSTbaSTb", 12);
    stop_set_free(s);
    /* a stop that was passed over is not held, unless it begins a longer one */
    struct error err;
    struct detok d;
    s = stops_of((struct str[]){STR("ST"), STR("STbaSx")}, 2);
    detok_init(&d, &v.view, no_lead, s, (struct detok_opts){.min_ids = 9});
    for (uint32_t id = 0; id < 2; id++)
        assert_ok(err, detok_feed(&d, id, NULL, &err));
    assert_int_equal(detok_held(&d), 3);
    stop_set_free(s);
    s = stops_of((struct str[]){STR("Tb"), STR("STb")}, 2);
    detok_init(&d, &v.view, no_lead, s, (struct detok_opts){.min_ids = 9});
    for (uint32_t id = 0; id < 2; id++)
        assert_ok(err, detok_feed(&d, id, NULL, &err));
    assert_int_equal(detok_held(&d), 0);
    stop_set_free(s);
}

static void stop_index_is_the_first_of_equal_stops(void **state)
{
    (void)state;
    struct error err;
    struct vocab v;
    struct detok d;
    vocab_reset(&v);
    vocab_add(&v, STR("...b"), 0);
    struct stop_set *s = stops_of((struct str[]){STR("a"), STR("b"), STR("b")}, 3);
    detok_init(&d, &v.view, no_lead, s, (struct detok_opts){0});
    assert_ok(err, detok_feed(&d, 0, NULL, &err));
    assert_true(d.stopped);
    assert_int_equal(d.stop_index, 1);
    assert_int_equal(d.bytes, 3);
    stop_set_free(s);
}

static void copy_of_a_stream_is_a_way_back(void **state)
{
    (void)state;
    struct error err;
    struct vocab v;
    struct detok d;
    struct buf out;
    vocab_reset(&v);
    vocab_add(&v, STR("S"), 0);
    vocab_add(&v, STR("T"), 0);
    vocab_add(&v, STR("x"), 0);
    struct stop_set *s = stops_of((struct str[]){STR("ST")}, 1);
    buf_init(&out, MIB);
    detok_init(&d, &v.view, no_lead, s, (struct detok_opts){0});
    assert_ok(err, detok_feed(&d, 0, &out, &err));
    const struct detok back = d;
    assert_ok(err, detok_feed(&d, 1, NULL, &err));
    assert_true(d.stopped);
    d = back;
    assert_ok(err, detok_feed(&d, 2, &out, &err));
    assert_false(d.stopped);
    assert_int_equal(out.n, 2);
    assert_memory_equal(out.p, "Sx", 2);
    buf_fini(&out);
    stop_set_free(s);
}

static void bad_stops_and_ids_are_refused(void **state)
{
    (void)state;
    struct error err;
    struct stop_set *s = NULL;
    struct str many[STOPS_MAX + 1];
    static char long_stop[STOP_BYTES_MAX + 1];
    assert_fails(
        err, ERR_INVALID, "stop string 1 is empty", stop_set_new(&s, (struct str[]){STR("a"), STR("")}, 2, &err));
    for (size_t i = 0; i < COUNT_OF(many); i++)
        many[i] = STR("x");
    assert_fails(err, ERR_LIMIT, "65 stop strings", stop_set_new(&s, many, COUNT_OF(many), &err));
    many[0] = (struct str){long_stop, sizeof long_stop};
    assert_fails(err, ERR_LIMIT, "has 1025 bytes", stop_set_new(&s, many, 1, &err));
    for (size_t i = 0; i < 17; i++)
        many[i] = (struct str){long_stop, STOP_BYTES_MAX};
    assert_fails(err, ERR_LIMIT, "17408 bytes in all", stop_set_new(&s, many, 17, &err));
    assert_ok(err, stop_set_new(&s, many, 16, &err));
    struct vocab v;
    struct detok d;
    vocab_reset(&v);
    vocab_add(&v, STR("a"), 0);
    detok_init(&d, &v.view, no_lead, s, (struct detok_opts){0});
    assert_fails(err, ERR_INVALID, "token id 1 is outside", detok_feed(&d, 1, NULL, &err));
    stop_set_free(s);
}

static void feeding_does_not_allocate(void **state)
{
    (void)state;
    struct error err;
    struct vocab v;
    struct detok d;
    struct buf out;
    vocab_reset(&v);
    vocab_add(&v, STR("ab\xE4\xBD"), 0);
    vocab_add(&v, STR("\xA0 ENE"), 0);
    struct stop_set *s = stops_of((struct str[]){STR("END"), STR("\xA0 ENEM")}, 2);
    buf_init(&out, MIB);
    assert_non_null(buf_room(&out, 4096));
    detok_init(&d, &v.view, no_lead, s, (struct detok_opts){0});
    const uint64_t before = mem_thread_allocs();
    for (int i = 0; i < 100; i++) {
        assert_ok(err, detok_feed(&d, (uint32_t)i & 1, &out, &err));
        if (out.n > 2000)
            buf_clear(&out);
    }
    assert_int_equal(mem_thread_allocs(), before);
    buf_fini(&out);
    stop_set_free(s);
}

/* ---- against the definition ---- */

/* Can these bytes be completed to one character? Tries completions instead of knowing the ranges: every next byte, and
 * 0x80 for those behind it, of which any continuation byte is as good as another. */
static bool is_beginning(const char *p, size_t n)
{
    char c[4] = {'\x80', '\x80', '\x80', '\x80'};
    memcpy(c, p, n);
    for (unsigned next = 0x80; next < 0xC0; next++) {
        c[n] = (char)next;
        for (size_t total = n + 1; total <= 4; total++) {
            if (utf8_len((struct str){c, total}) == total)
                return true;
        }
    }
    return false;
}

/* The text of bytes; with open, the beginning of a character at the end is left out instead of replaced. */
static size_t text_of(const char *p, size_t n, bool open, char *out)
{
    size_t i = 0, m = 0;
    while (i < n) {
        size_t len = utf8_len((struct str){p + i, n - i});
        if (len > 0) {
            memcpy(out + m, p + i, len);
            m += len;
            i += len;
            continue;
        }
        len = 1;
        for (size_t k = MIN((size_t)3, n - i); k > 1; k--) {
            if (is_beginning(p + i, k)) {
                len = k;
                break;
            }
        }
        if (open && i + len == n && is_beginning(p + i, len))
            return m;
        memcpy(out + m, "\xEF\xBF\xBD", 3);
        m += 3;
        i += len;
    }
    return m;
}

/* Where the first stop ends (0: nowhere), which one, and how many bytes at the end of p could still become one. */
static size_t find_stop(const char *p, size_t n, const struct str *stops, size_t n_stops, size_t *which)
{
    for (size_t end = 1; end <= n; end++) {
        size_t best = 0;
        for (size_t i = 0; i < n_stops; i++) {
            if (stops[i].n <= end && stops[i].n > best && memcmp(p + end - stops[i].n, stops[i].p, stops[i].n) == 0) {
                best = stops[i].n;
                *which = i;
            }
        }
        if (best > 0)
            return end;
    }
    return 0;
}

static size_t held_back(const char *p, size_t n, const struct str *stops, size_t n_stops)
{
    for (size_t k = n; k > 0; k--) {
        for (size_t i = 0; i < n_stops; i++) {
            if (k < stops[i].n && memcmp(p + n - k, stops[i].p, k) == 0)
                return k;
        }
    }
    return 0;
}

/* Small alphabets make overlaps, long ones make characters. */
static const char *const alphabets[] = {
    "ab", "a b", "\xE4\xBD\xA0", "a\xF0\x9F\x91\x8D", "\xC3\xA9\x80 e", "\xED\xA0\x80\xC0\xF4\x90z"};

static size_t draw_bytes(char *out, size_t max, const char *alphabet)
{
    const size_t n = draw((uint32_t)max + 1);
    for (size_t i = 0; i < n; i++)
        out[i] = alphabet[draw((uint32_t)strlen(alphabet))];
    return n;
}

struct random_case {
    struct vocab v;
    char raw[TEXT_MAX]; /* what the tokens decode to, lead rule applied */
    size_t n_raw;
    struct str stops[6];
    char stop_bytes[6][12];
    size_t n_stops;
    struct tok_lead lead;
    struct detok_opts opts;
};

static void case_draw(struct random_case *c)
{
    const char *alphabet = alphabets[draw(COUNT_OF(alphabets))];
    c->lead = (struct tok_lead){draw(4), draw(2) != 0};
    c->opts =
        (struct detok_opts){.show_special = draw(2) != 0, .continues = draw(3) == 0, .include_stop = draw(2) != 0};
    c->n_stops = draw(7);
    for (size_t i = 0; i < c->n_stops; i++) {
        const size_t n = 1 + draw_bytes(c->stop_bytes[i], draw(4) == 0 ? 10 : 2, alphabet);
        c->stop_bytes[i][n - 1] = alphabet[draw((uint32_t)strlen(alphabet))];
        c->stops[i] = (struct str){c->stop_bytes[i], n};
    }
    vocab_reset(&c->v);
    c->n_raw = 0;
    uint32_t spaces = c->opts.continues ? 0 : c->lead.spaces;
    for (uint32_t n = draw(40); n > 0; n--) {
        char piece[10];
        const struct str s = {piece, draw_bytes(piece, draw(3) == 0 ? 9 : 3, alphabet)};
        const bool special = draw(10) == 0;
        vocab_add(&c->v, s, special ? VOCAB_SPECIAL : 0);
        if (special && !c->opts.show_special)
            continue;
        size_t skip = 0;
        while (skip < s.n && spaces > 0 && s.p[skip] == ' ') {
            skip++;
            spaces--;
        }
        if (skip < s.n || c->lead.first_token_only)
            spaces = 0;
        memcpy(c->raw + c->n_raw, s.p + skip, s.n - skip);
        c->n_raw += s.n - skip;
    }
}

/* One stream, checked after every token. */
static void case_check(struct random_case *c)
{
    struct error err;
    struct detok d;
    struct buf out;
    char want[3 * TEXT_MAX];
    struct stop_set *s = stops_of(c->stops, c->n_stops);
    size_t which = 0;
    const size_t end = find_stop(c->raw, c->n_raw, c->stops, c->n_stops, &which);
    const size_t cut = end == 0 ? c->n_raw : c->opts.include_stop ? end : end - c->stops[which].n;
    buf_init(&out, MIB);
    detok_init(&d, &c->v.view, c->lead, draw(2) && c->n_stops == 0 ? NULL : s, c->opts);
    for (uint32_t id = 0; id < c->v.view.n; id++) {
        assert_ok(err, detok_feed(&d, id, &out, &err));
        if (d.stopped)
            break;
        const size_t n = (size_t)d.bytes, held = held_back(c->raw, n, c->stops, c->n_stops);
        assert_int_equal(out.n, text_of(c->raw, n - held, true, want));
        if (out.n > 0)
            assert_memory_equal(out.p, want, out.n);
        assert_true(utf8_is_valid(buf_str(&out)));
        assert_true(detok_held(&d) <= held + 3);
    }
    assert_int_equal(d.stopped, end != 0);
    if (end != 0)
        assert_int_equal(d.stop_index, which);
    assert_ok(err, detok_end(&d, &out, &err));
    assert_int_equal(d.bytes, cut);
    assert_int_equal(out.n, text_of(c->raw, cut, false, want));
    if (out.n > 0)
        assert_memory_equal(out.p, want, out.n);
    buf_fini(&out);
    stop_set_free(s);
}

static void random_streams_equal_the_definition(void **state)
{
    (void)state;
    struct random_case *c = test_malloc(sizeof *c);
    for (uint32_t seed = 1; seed <= 20000; seed++) {
        rng_state = seed;
        case_draw(c);
        case_check(c);
    }
    test_free(c);
}

/* The same bytes cut into tokens in different ways give the same text and the same cut. */
static void any_cut_into_tokens_gives_the_same_text(void **state)
{
    (void)state;
    struct error err;
    const struct str text = STR("Grüße, 你好 👍🏽! stop? sto\nst\n\nstop\nrest");
    const struct str stops[] = {STR("stop\n"), STR("\n\n\n"), STR("好好")};
    struct stop_set *s = stops_of(stops, COUNT_OF(stops));
    for (uint32_t seed = 1; seed <= 2000; seed++) {
        struct vocab v;
        struct detok d;
        struct buf out;
        rng_state = seed;
        vocab_reset(&v);
        for (size_t i = 0; i < text.n;) {
            const size_t want = 1 + draw(1 + seed % 9), n = MIN(text.n - i, want);
            vocab_add(&v, (struct str){text.p + i, n}, 0);
            i += n;
        }
        buf_init(&out, MIB);
        detok_init(&d, &v.view, no_lead, s, (struct detok_opts){0});
        for (uint32_t id = 0; id < v.view.n; id++)
            assert_ok(err, detok_feed(&d, id, &out, &err));
        assert_ok(err, detok_end(&d, &out, &err));
        const size_t cut = text.n - strlen("stop\nrest");
        assert_true(d.stopped);
        assert_int_equal(d.bytes, cut);
        assert_int_equal(out.n, cut);
        assert_memory_equal(out.p, text.p, cut);
        buf_fini(&out);
    }
    stop_set_free(s);
}

/* Control tokens are told apart from text that spells them; what was held comes before, and no stop spans one. */
static void marked_special_tokens_stand_where_they_were(void **state)
{
    (void)state;
    static struct vocab v;
    struct error err;
    struct buf out;
    struct detok d, blind;
    const struct str stop = STR("abc");
    struct stop_set *s = stops_of(&stop, 1);
    vocab_reset(&v);
    vocab_add(&v, STR("xab"), 0);
    vocab_add(&v, STR("<|t|>"), VOCAB_SPECIAL);
    vocab_add(&v, STR("c\xc3"), 0);
    vocab_add(&v, STR("abcd"), 0);
    const uint32_t ids[] = {0, 1, 2, 1, 3, 1};
    buf_init(&out, 1 << 16);
    detok_init(&d, &v.view, no_lead, s, (struct detok_opts){.mark_special = true});
    detok_init(&blind, &v.view, no_lead, s, (struct detok_opts){.mark_special = true});
    for (size_t i = 0; i < COUNT_OF(ids); i++) {
        assert_ok(err, detok_feed(&d, ids[i], &out, &err));
        assert_ok(err, detok_feed(&blind, ids[i], NULL, &err));
        assert_int_equal(d.stopped, blind.stopped);
    }
    assert_true(d.stopped);
    assert_true(str_eq(buf_str(&out), STR("xab\xff<|t|>\xfe"
                                          "c\xef\xbf\xbd\xff<|t|>\xfe")));
    buf_fini(&out);
    stop_set_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(marked_special_tokens_stand_where_they_were),
        cmocka_unit_test(character_cut_over_tokens_comes_out_whole),
        cmocka_unit_test(unfinished_character_at_the_end_is_one_replacement),
        cmocka_unit_test(invalid_bytes_are_replaced_per_maximal_part),
        cmocka_unit_test(lead_space_goes_once_and_only_at_the_start_of_a_text),
        cmocka_unit_test(lead_rule_over_tokens_stops_at_the_first_when_asked),
        cmocka_unit_test(stop_over_three_tokens_cuts_exactly),
        cmocka_unit_test(first_stop_to_end_wins_and_of_those_the_longest),
        cmocka_unit_test(stop_equal_to_the_whole_output_leaves_nothing),
        cmocka_unit_test(stop_that_begins_inside_a_character_leaves_a_replacement),
        cmocka_unit_test(stop_prefix_that_fails_is_given_back),
        cmocka_unit_test(special_token_between_does_not_hide_a_stop),
        cmocka_unit_test(stop_index_is_the_first_of_equal_stops),
        cmocka_unit_test(stops_below_the_least_ids_are_passed_over),
        cmocka_unit_test(copy_of_a_stream_is_a_way_back),
        cmocka_unit_test(bad_stops_and_ids_are_refused),
        cmocka_unit_test(feeding_does_not_allocate),
        cmocka_unit_test(random_streams_equal_the_definition),
        cmocka_unit_test(any_cut_into_tokens_gives_the_same_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What grammars cost: how long compiling takes, and how long the mask of one row takes at one step, over a real
 * vocabulary. Each grammar is walked by random tokens that its masks allow, with a liking for those that close
 * something, so that texts end. The first pass sees masks that nobody asked for before; the second is what a grammar
 * costs that has served.
 *
 *     quern_masks TOKENIZER.json [--steps N] [--check]
 *
 * --check ends with 1 when a mean or a 99th percentile of either pass, or a typical tool's compile time, is over its
 * bar (5 us, 50 us, 5 ms). */
#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"
#include "figures.h"
#include "grammar/grammar.h"
#include "text/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TOOL                                                                                                           \
    "{\"type\":\"object\",\"properties\":{\"location\":{\"type\":\"string\",\"description\":\"City and state\"},"      \
    "\"unit\":{\"type\":\"string\",\"enum\":[\"celsius\",\"fahrenheit\"]},\"days\":{\"type\":\"integer\","             \
    "\"minimum\":1,\"maximum\":14},\"details\":{\"type\":\"object\",\"properties\":{\"wind\":{\"type\":\"boolean\"},"  \
    "\"notes\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}}},\"required\":[\"wind\"],"                         \
    "\"additionalProperties\":false}},\"required\":[\"location\",\"unit\"],\"additionalProperties\":false}"
#define PERSON                                                                                                         \
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":100},\"id\":{\"type\":"          \
    "\"string\",\"pattern\":\"^[a-z0-9_-]{3,32}$\"},\"email\":{\"type\":\"string\"},\"tags\":{\"type\":\"array\","     \
    "\"items\":{\"type\":\"string\",\"maxLength\":20},\"maxItems\":10},\"score\":{\"type\":\"number\"},"               \
    "\"extra\":{}},\"required\":[\"name\",\"id\",\"tags\"]}"

static const struct {
    const char *name;
    enum grammar_kind kind;
    const char *text;
    bool is_typical; /* the compile bar applies */
} CASES[] = {
    {"tool", GRAMMAR_JSON_SCHEMA, TOOL, true},
    {"person", GRAMMAR_JSON_SCHEMA, PERSON, true},
    {"any object", GRAMMAR_JSON_OBJECT, "", true},
    {"tool call", GRAMMAR_STRUCTURE,
        "{\"type\":\"sequence\",\"parts\":[{\"type\":\"free_until\",\"stops\":[\"<tool_call>\"]},{\"type\":\"repeat\","
        "\"part\":{\"type\":\"sequence\",\"parts\":[{\"type\":\"text\",\"value\":\"<tool_call>\\n{\\\"name\\\": "
        "\\\"weather\\\", \\\"arguments\\\": \"},{\"type\":\"json\",\"schema\":" TOOL
        "},{\"type\":\"text\",\"value\":\"}\\n</tool_call>\"}]}}]}",
        true},
    {"regex", GRAMMAR_REGEX, "[A-Z][a-z]{2,20}( [A-Z][a-z]+)*, \\d{1,3} years", false},
    {"ebnf", GRAMMAR_EBNF,
        "root ::= stmt+\nstmt ::= name \" = \" expr \";\\n\"\nexpr ::= term ([-+*/] term)*\nterm ::= name | num | "
        "\"(\" "
        "expr \")\"\nname ::= [a-z] [a-z0-9_]*\nnum ::= [0-9]+ (\".\" [0-9]+)?\n",
        false},
};

struct bench {
    const struct vocab_view *view;
    struct grammar_vocab *vocab;
    struct grammar_walk *walk;
    uint64_t *mask;
    uint32_t *allowed;
    double *us;
    uint32_t steps;
    uint64_t random;
};

/* Time of this thread on a core: other programs do not count. Reading it costs 0.2 us, which is in the numbers. */
static double now_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static uint64_t next_random(struct bench *b)
{
    b->random ^= b->random << 13, b->random ^= b->random >> 7, b->random ^= b->random << 17;
    return b->random;
}

static bool closes(struct str t)
{
    return t.n > 0 && strchr("\"}],;.)\n<", t.p[0]) != NULL && t.p[0] != '\0';
}

/* A token of the mask; UINT32_MAX: none, or enough of this text. */
static uint32_t pick(struct bench *b)
{
    uint32_t n = 0, closing = 0;
    const bool close = next_random(b) % 6 == 0;
    for (uint32_t id = 0; id < b->view->n; id++) {
        if ((b->mask[id / 64] >> (id % 64) & 1) == 0)
            continue;
        if (close && closes(vocab_bytes(b->view, id))) {
            if (closing++ == 0)
                n = 0;
            b->allowed[n++] = id;
        } else if (closing == 0) {
            b->allowed[n++] = id;
        }
    }
    return n == 0 ? UINT32_MAX : b->allowed[next_random(b) % n];
}

static void pass(struct bench *b, struct grammar *g)
{
    bool fresh = true;
    for (uint32_t i = 0; i < b->steps; i++) {
        if (fresh || next_random(b) % 200 == 0)
            grammar_walk_init(b->walk, g);
        fresh = false;
        const double t = now_us();
        (void)grammar_mask(b->walk, NULL, 0, b->mask);
        b->us[i] = now_us() - t;
        const uint32_t id = pick(b);
        fresh = id == UINT32_MAX || grammar_accept(b->walk, id, NULL) != OK;
    }
    figures_sort(b->us, b->steps);
}

static double mean(const struct bench *b)
{
    double sum = 0;
    for (uint32_t i = 0; i < b->steps; i++)
        sum += b->us[i];
    return sum / b->steps;
}

static bool measure(struct bench *b, size_t i)
{
    struct error e = {0};
    struct grammar *g = NULL;
    const struct grammar_source src = {.kind = CASES[i].kind, .text = str_of(CASES[i].text)};
    double ms = 1e9, first = 0;
    for (int k = 0; k < 3; k++) {
        grammar_unref(g);
        g = NULL;
        const double t = now_us();
        if (grammar_compile(&src, b->vocab, &g, &e) != OK) {
            fprintf(stderr, "quern_masks: %s: %s\n", CASES[i].name, e.text);
            return false;
        }
        const double took = (now_us() - t) / 1e3;
        first = k == 0 ? took : first;
        ms = MIN(ms, took);
    }
    printf("%-12s %8.2f %8.2f", CASES[i].name, first, ms);
    bool good = ms < 5 || !CASES[i].is_typical;
    b->random = 88172645463325252ULL;
    for (int k = 0; k < 2; k++) {
        pass(b, g);
        const double p99 = b->us[b->steps * 99 / 100], m = mean(b);
        printf(" | %8.2f %8.2f %8.2f %8.2f", m, b->us[b->steps / 2], p99, b->us[b->steps - 1]);
        good &= m <= 5 && p99 <= 50;
    }
    printf(" | %8zu\n", grammar_bytes(g) / 1024);
    grammar_unref(g);
    return good;
}

static enum err run(const char *path, uint32_t steps, bool *good, struct error *e)
{
    char *json = NULL;
    size_t n = 0;
    struct tok *tok = NULL;
    struct tok_cutter *cutter = NULL;
    struct bench b = {.steps = steps};
    enum err err = file_read_all(path, JSON_BYTES_MAX, &json, &n, e);
    if (err == OK)
        err = tok_from_json((struct str){json, n}, (struct str){NULL, 0}, &tok, e);
    if (err == OK) {
        b.view = tok_vocab(tok);
        const double t = now_us();
        err = grammar_vocab_new(b.view, &b.vocab, e);
        printf("%u tokens; their trie in %.0f ms\n", b.view->n, (now_us() - t) / 1e3);
    }
    if (err == OK)
        err = tok_cutter_new(tok, &cutter, e);
    if (err == OK)
        grammar_vocab_cutter(b.vocab, tok_cutter_cut, cutter);
    b.walk = mem_alloc(grammar_walk_bytes());
    b.us = mem_array(steps, sizeof *b.us);
    b.mask = err == OK ? mem_array(b.view->n / 64 + 1, sizeof *b.mask) : NULL;
    b.allowed = err == OK ? mem_array(b.view->n, sizeof *b.allowed) : NULL;
    if (err == OK && (b.walk == NULL || b.us == NULL || b.mask == NULL || b.allowed == NULL))
        err = FAIL(e, ERR_NOMEM, "out of memory");
    if (err == OK)
        printf("%-12s %8s %8s | %35s | %35s | %8s\n%-12s %8s %8s | %8s %8s %8s %8s | %8s %8s %8s %8s |\n", "",
            "compile", "again", "first pass: mask in us", "second pass", "KB", "", "ms", "ms", "mean", "median", "p99",
            "max", "mean", "median", "p99", "max");
    for (size_t i = 0; i < COUNT_OF(CASES) && err == OK; i++)
        *good &= measure(&b, i);
    mem_free(b.allowed);
    mem_free(b.mask);
    mem_free(b.us);
    mem_free(b.walk);
    grammar_vocab_free(b.vocab);
    tok_cutter_free(cutter);
    tok_free(tok);
    mem_free(json);
    return err;
}

int main(int argc, char **argv)
{
    struct error e = {0};
    const char *path = NULL;
    uint32_t steps = 4000;
    bool good = true, check = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--check") == 0)
            check = true;
        else if (strcmp(argv[i], "--steps") == 0 && i + 1 < argc)
            steps = (uint32_t)strtoul(argv[++i], NULL, 10);
        else
            path = argv[i];
    }
    if (path == NULL || steps < 100) {
        fprintf(stderr, "usage: quern_masks TOKENIZER.json [--steps N, from 100] [--check]\n");
        return 2;
    }
    if (run(path, steps, &good, &e) != OK) {
        fprintf(stderr, "quern_masks: %s\n", e.text);
        return 1;
    }
    return check && !good;
}

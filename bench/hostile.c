/* What hostile grammars cost: schemas, patterns and grammars written to cost much, compiled over a real vocabulary, one
 * after the other. Each must end, compiled or refused, within 200 ms of one core.
 *
 *     quern_hostile TOKENIZER.json [--check]
 *
 * A source is a head, a middle that is repeated with its number in the place of % and the next number in the place of
 * @, and a tail. --check ends with 1 when one takes longer. */
#include "base/buf.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"
#include "grammar/grammar.h"
#include "text/text.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define LIMIT_MS 200

static const struct hostile {
    const char *name;
    enum grammar_kind kind;
    const char *head, *middle;
    uint32_t n;
    const char *tail;
} CASES[] = {
    {"brackets", GRAMMAR_REGEX, "", "(", 100000, ""},
    {"closed brackets", GRAMMAR_REGEX, "((((((((((((((((((((", "(a", 170, "))))))"},
    {"count", GRAMMAR_REGEX, "[a-z]{1,1000000}", "", 0, ""},
    {"counts in counts", GRAMMAR_REGEX, "(((a{1,100}){1,100}){1,100}){1,1000}", "", 0, ""},
    {"counts in a row", GRAMMAR_REGEX, "", "[a-z]{1,1000}", 2000, ""},
    {"optional counts in a row", GRAMMAR_REGEX, "", "(x[a-z]{0,9}){0,99}", 500, ""},
    {"ambiguous count", GRAMMAR_REGEX, "(a|aa){1,100000}", "", 0, ""},
    {"ambiguous count, small", GRAMMAR_REGEX, "(a|aa|[a-c]{3}){1,300}", "", 0, ""},
    {"ambiguous counts", GRAMMAR_REGEX, "(([a-z]{1,50}x?){1,50}y?){1,50}", "", 0, ""},
    {"stars in stars", GRAMMAR_REGEX, "((((a*)*)*)*b)+", "", 0, ""},
    {"exponential", GRAMMAR_REGEX, "(a|b)*a", "(a|b)", 60, ""},
    {"exponential, searched", GRAMMAR_REGEX, ".*x", ".", 200, ""},
    {"exponential, wide", GRAMMAR_REGEX, "(.*a", ".", 18, ")|(.*b.................)"},
    {"alternatives", GRAMMAR_REGEX, "a", "|b%", 90000, ""},
    {"alternatives with tails", GRAMMAR_REGEX, "a", "|.*w%x", 300, ""},
    {"classes", GRAMMAR_REGEX, "", "[\\p{L}\\d]+", 60, ""},
    {"classes that differ", GRAMMAR_REGEX, "x", "|[\\p{L}\\p{Nd}]*%", 100, ""},
    {"class of many ranges", GRAMMAR_REGEX, "[a", "\\u{%}", 100, "b]*"},
    {"counted classes", GRAMMAR_REGEX, "", "\\p{L}{1,%}\\p{Lu}", 100, ""},
    {"long text", GRAMMAR_REGEX, "", "abcdefghij", 100000, ""},
    {"long text of dots", GRAMMAR_REGEX, "", ".", 1000000, ""},
    {"optional letters", GRAMMAR_REGEX, "", "a?", 5000, ""},
    {"optional words", GRAMMAR_REGEX, "", "(w%)?", 3000, ""},
    {"choices", GRAMMAR_CHOICE, "[\"x\"", ",\"w%\"", 80000, "]"},
    {"long choices", GRAMMAR_CHOICE, "[\"x\"", ",\"%abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz\"", 15000,
        "]"},
    {"rule brackets", GRAMMAR_EBNF, "root ::= ", "(", 100000, ""},
    {"doubling rules", GRAMMAR_EBNF, "root ::= r0\n", "r% ::= r@ r@\n", 60, "r60 ::= \"x\""},
    {"doubling rules, optional", GRAMMAR_EBNF, "root ::= r0\n", "r% ::= r@? r@?\n", 60, "r60 ::= \"x\""},
    {"chain of rules", GRAMMAR_EBNF, "root ::= r0\n", "r% ::= r@\n", 15000, "r15000 ::= \"x\""},
    {"chain, optional", GRAMMAR_EBNF, "root ::= r0\n", "r% ::= r@? \"a\" r@\n", 10000, "r10000 ::= \"x\""},
    {"left recursion", GRAMMAR_EBNF, "root ::= r0\n", "r% ::= r@\n", 5000, "r5000 ::= r0"},
    {"hidden left recursion", GRAMMAR_EBNF, "root ::= r0\ne ::= \"\"\n", "r% ::= e r@ | \"a\"\n", 5000,
        "r5000 ::= e r0 \"b\""},
    {"ambiguous rules", GRAMMAR_EBNF, "root ::= \"a\" root root | \"a\" root | \"a\"\n", "", 0, ""},
    {"rules that call all", GRAMMAR_EBNF, "root ::= \"x\"", " | \"a\" r%", 3000, "\nr0 ::= \"b\"\n"},
    {"counted rules", GRAMMAR_EBNF, "root ::= r0{0,1000000}\n", "r% ::= \"a\" r@{0,1000} \"b\"\n", 100,
        "r100 ::= \"x\""},
    {"stops", GRAMMAR_STRUCTURE, "{\"type\":\"free_until\",\"stops\":[\"x\"", ",\"abababababababababababababababab%\"",
        2000, "]}"},
    {"stops of all lengths", GRAMMAR_STRUCTURE, "{\"type\":\"free_until\",\"stops\":[\"x\"", ",\"%%%%%%%%%%%%%%%%\"",
        9000, "]}"},
    {"parts in parts", GRAMMAR_STRUCTURE, "", "{\"type\":\"sequence\",\"parts\":[", 100000, ""},
    {"repeats in repeats", GRAMMAR_STRUCTURE, "", "{\"type\":\"repeat\",\"max\":1000,\"part\":", 60,
        "{\"type\":\"text\",\"value\":\"x\"}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}"},
    {"schemas in schemas", GRAMMAR_JSON_SCHEMA, "", "{\"items\":", 100000, ""},
    {"properties", GRAMMAR_JSON_SCHEMA, "{\"properties\":{\"a\":{}", ",\"p%\":{}", 1000, "}}"},
    {"properties, closed", GRAMMAR_JSON_SCHEMA, "{\"additionalProperties\":false,\"properties\":{\"a\":{}",
        ",\"p%\":{}", 1000, "}}"},
    {"properties of numbers", GRAMMAR_JSON_SCHEMA, "{\"properties\":{\"a\":{}",
        ",\"p%\":{\"type\":\"number\",\"minimum\":%,\"maximum\":1%.%}", 300, "}}"},
    {"properties of patterns", GRAMMAR_JSON_SCHEMA, "{\"properties\":{\"a\":{}", ",\"p%\":{\"pattern\":\"a.*b%\"}", 300,
        "}}"},
    {"properties of formats", GRAMMAR_JSON_SCHEMA, "{\"properties\":{\"a\":{}",
        ",\"p%\":{\"format\":\"email\",\"maxLength\":1%}", 50, "}}"},
    {"properties of dates", GRAMMAR_JSON_SCHEMA, "{\"properties\":{\"a\":{}",
        ",\"p%\":{\"format\":\"date-time\",\"pattern\":\"%\"}", 50, "}}"},
    {"required counts", GRAMMAR_JSON_SCHEMA, "{\"minProperties\":400,\"properties\":{\"a\":{}", ",\"p%\":{}", 500,
        "}}"},
    {"pattern properties", GRAMMAR_JSON_SCHEMA, "{\"patternProperties\":{\"a\":{}", ",\"x.*%\":{\"minimum\":%}", 12,
        "}}"},
    {"pattern properties, many", GRAMMAR_JSON_SCHEMA, "{\"patternProperties\":{\"a\":{}", ",\"^x%\":{\"minimum\":%}",
        200, "}}"},
    {"words", GRAMMAR_JSON_SCHEMA, "{\"enum\":[0", ",\"word%\"", 20000, "]}"},
    {"objects in enum", GRAMMAR_JSON_SCHEMA, "{\"enum\":[0", ",{\"a\":%,\"b\":[%]}", 5000, "]}"},
    {"branches", GRAMMAR_JSON_SCHEMA, "{\"anyOf\":[{}", ",{\"minimum\":%}", 1900, "]}"},
    {"branches of objects", GRAMMAR_JSON_SCHEMA, "{\"anyOf\":[{}",
        ",{\"type\":\"object\",\"properties\":{\"a%\":{\"type\":\"string\"}},\"required\":[\"a%\"]}", 500, "]}"},
    {"exclusive branches", GRAMMAR_JSON_SCHEMA, "{\"oneOf\":[{\"const\":0}", ",{\"minimum\":%}", 60, "]}"},
    {"branches of branches", GRAMMAR_JSON_SCHEMA, "{\"allOf\":[{}", ",{\"anyOf\":[{\"minimum\":%},{\"maxLength\":%}]}",
        20, "]}"},
    {"not of not", GRAMMAR_JSON_SCHEMA, "", "{\"not\":", 120, "{}"},
    {"patterns that meet", GRAMMAR_JSON_SCHEMA, "{\"allOf\":[{}", ",{\"pattern\":\"a.*%.*b\"}", 20, "]}"},
    {"lengths that meet", GRAMMAR_JSON_SCHEMA,
        "{\"pattern\":\"^(a|b)*a(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)\",\"maxLength\":10000,\"minLength\":5000}", "",
        0, ""},
    {"formats that meet", GRAMMAR_JSON_SCHEMA,
        "{\"allOf\":[{\"format\":\"uri\"},{\"format\":\"email\"},{\"pattern\":\"x.*y\"},{\"maxLength\":500}]}", "", 0,
        ""},
    {"format and length", GRAMMAR_JSON_SCHEMA, "{\"format\":\"iri\",\"maxLength\":1000}", "", 0, ""},
    {"denied pattern", GRAMMAR_JSON_SCHEMA, "{\"not\":{\"pattern\":\"(a|b)*a(a|b){12}\"}}", "", 0, ""},
    {"references", GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#/$defs/a0\",\"$defs\":{\"z\":{}",
        ",\"a%\":{\"$ref\":\"#/$defs/a@\"}", 150, ",\"a150\":{}}}"},
    {"doubling references", GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#/$defs/a0\",\"$defs\":{\"z\":{}",
        ",\"a%\":{\"allOf\":[{\"$ref\":\"#/$defs/a@\"},{\"$ref\":\"#/$defs/a@\"}]}", 60, ",\"a60\":{}}}"},
    {"doubling members", GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#/$defs/a0\",\"$defs\":{\"z\":{}",
        ",\"a%\":{\"properties\":{\"x\":{\"$ref\":\"#/$defs/a@\"},\"y\":{\"$ref\":\"#/$defs/a@\"}}}", 300,
        ",\"a300\":{}}}"},
    {"branching references", GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#/$defs/a0\",\"$defs\":{\"z\":{}",
        ",\"a%\":{\"anyOf\":[{\"$ref\":\"#/$defs/a@\"},{\"$ref\":\"#/$defs/a@\"},{\"minimum\":%}]}", 60,
        ",\"a60\":{}}}"},
    {"itself", GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#\"}", "", 0, ""},
    {"itself, in a round", GRAMMAR_JSON_SCHEMA,
        "{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"$ref\":\"#/$defs/b\"},\"b\":{\"$ref\":\"#/$defs/a\"}}}", "", 0,
        ""},
    {"items", GRAMMAR_JSON_SCHEMA, "{\"minItems\":9223372036854775807}", "", 0, ""},
    {"prefix items", GRAMMAR_JSON_SCHEMA, "{\"prefixItems\":[{}", ",{\"minimum\":%}", 5000, "]}"},
    {"contains", GRAMMAR_JSON_SCHEMA, "{\"contains\":{\"minimum\":5},\"minContains\":400,\"maxContains\":1000}", "", 0,
        ""},
    {"multiples", GRAMMAR_JSON_SCHEMA, "{\"allOf\":[{\"multipleOf\":9}", ",{\"multipleOf\":1%}", 10, "]}"},
    {"large multiple", GRAMMAR_JSON_SCHEMA, "{\"multipleOf\":9999,\"minimum\":0.001,\"maximum\":123456789.123}", "", 0,
        ""},
    {"unevaluated", GRAMMAR_JSON_SCHEMA, "{\"unevaluatedProperties\":false,\"anyOf\":[{\"properties\":{\"a\":{}}}",
        ",{\"properties\":{\"b%\":{}}}", 6, "]}"},
    {"conditions", GRAMMAR_JSON_SCHEMA, "{\"allOf\":[{}",
        ",{\"if\":{\"properties\":{\"k\":{\"const\":%}}},\"then\":{\"required\":[\"x%\"]}}", 10, "]}"},
    {"dependencies", GRAMMAR_JSON_SCHEMA, "{\"dependentRequired\":{\"z\":[\"y\"]", ",\"a%\":[\"a@\"]", 14, "}}"},
    {"names of names", GRAMMAR_JSON_SCHEMA, "", "{\"propertyNames\":{\"minLength\":1,\"anyOf\":[", 50, "{}"},
    {"long keys", GRAMMAR_JSON_SCHEMA, "{\"properties\":{\"a\":{}",
        ",\"p%"
        "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz\":{}",
        900, "}}"},
};

static double now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static struct str source(const struct hostile *h, struct buf *b)
{
    buf_clear(b);
    buf_add(b, str_of(h->head));
    for (uint32_t i = 0; i < h->n; i++)
        for (const char *p = h->middle; *p != '\0'; p++) {
            if (*p == '%' || *p == '@')
                buf_add_u64(b, i + (*p == '@'));
            else
                buf_add_char(b, *p);
        }
    buf_add(b, str_of(h->tail));
    return buf_str(b);
}

static bool measure(const struct hostile *h, const struct grammar_vocab *v, struct buf *b)
{
    struct error e = {0};
    struct grammar *g = NULL;
    const struct grammar_source src = {.kind = h->kind, .text = source(h, b)};
    const double start = now_ms();
    const enum err err = grammar_compile(&src, v, &g, &e);
    const double ms = now_ms() - start;
    printf("%-28s %8.1f ms %8zu KB  %.90s\n", h->name, ms, g != NULL ? grammar_bytes(g) / 1024 : 0,
        err == OK ? "compiled" : e.text);
    grammar_unref(g);
    return ms <= LIMIT_MS;
}

int main(int argc, char **argv)
{
    struct error e = {0};
    char *json = NULL;
    size_t n = 0;
    struct tok *tok = NULL;
    struct tok_cutter *cutter = NULL;
    struct grammar_vocab *vocab = NULL;
    if (argc < 2) {
        fprintf(stderr, "usage: quern_hostile TOKENIZER.json [--check]\n");
        return 2;
    }
    enum err err = file_read_all(argv[1], JSON_BYTES_MAX, &json, &n, &e);
    if (err == OK)
        err = tok_from_json((struct str){json, n}, (struct str){NULL, 0}, &tok, &e);
    if (err == OK)
        err = grammar_vocab_new(tok_vocab(tok), &vocab, &e);
    if (err == OK)
        err = tok_cutter_new(tok, &cutter, &e);
    if (err == OK)
        grammar_vocab_cutter(vocab, tok_cutter_cut, cutter);
    bool good = err == OK;
    struct buf b;
    buf_init(&b, 64 * MIB);
    for (size_t i = 0; i < COUNT_OF(CASES) && err == OK; i++)
        good &= measure(&CASES[i], vocab, &b);
    if (err != OK)
        fprintf(stderr, "quern_hostile: %s\n", e.text);
    buf_fini(&b);
    grammar_vocab_free(vocab);
    tok_cutter_free(cutter);
    tok_free(tok);
    mem_free(json);
    return err != OK ? 2 : argc > 2 && strcmp(argv[2], "--check") == 0 && !good ? 1 : 0;
}

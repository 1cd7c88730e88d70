/* The JSON door under any bytes: an answer within the limits, never a crash; a refusal has a sentence that can be
 * shown; and what was accepted is written and read back as the same value. The getters run over whatever came out. */
#include "base/buf.h"
#include "base/json.h"
#include "base/limits.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t n);

static void check(bool ok)
{
    if (!ok)
        __builtin_trap();
}

static void call_getters(const json_t *o)
{
    struct error e = {0};
    uint64_t u = 5;
    double d = 0.5;
    bool b = false;
    struct str s = {"", 0};
    const json_t *v = NULL;
    const enum err codes[] = {
        json_get_u64(o, "a", 5, 100, &u, &e),
        json_get_f64(o, "a", 0, 1, &d, &e),
        json_get_bool(o, "a", &b, &e),
        json_get_str(o, "a", &s, &e),
        json_get_object(o, "a", &v, &e),
        json_get_array(o, "a", &v, &e),
    };
    for (size_t i = 0; i < COUNT_OF(codes); i++)
        check(codes[i] == OK || codes[i] == ERR_INVALID);
    check(u >= 5 && u <= 100 && d >= 0 && d <= 1 && utf8_is_valid(s));
}

/* Dump with every digit a double needs and parse again. */
static void check_round_trip(const json_t *doc)
{
    char *text = json_dumps(doc, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    check(text != NULL);
    json_t *again = NULL;
    struct error e = {0};
    check(json_parse(str_of(text), &again, &e) == OK);
    check(json_equal(doc, again));
    json_decref(again);
    json_free_t give;
    json_get_alloc_funcs(NULL, &give);
    give(text);
}

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t n)
{
    struct error e = {0};
    json_t *doc = NULL;
    const enum err err = json_parse((struct str){(const char *)bytes, n}, &doc, &e);
    if (err != OK) {
        check(doc == NULL && e.code == err && (err == ERR_FORMAT || err == ERR_LIMIT));
        check(e.text[0] != '\0' && utf8_is_valid(str_of(e.text)) && strchr(e.text, '\n') == NULL);
        return 0;
    }
    call_getters(doc);
    check_round_trip(doc);
    json_decref(doc);
    return 0;
}

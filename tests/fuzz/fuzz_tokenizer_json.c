/* tokenizer.json under any bytes: an error with a sentence, or a tokenizer that encodes any text without a crash, whose
 * ids are in its vocabulary, and which never gives a special token for a user's text. What stands behind the first NUL
 * of the input is the text. */
#include "base/buf.h"
#include "base/limits.h"
#include "text/text.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t n);

static void check(bool ok)
{
    if (!ok)
        __builtin_trap();
}

static void encode(const struct tok *t, struct str text)
{
    struct tok_ctx *c = NULL;
    struct tok_ids ids;
    struct error e = {0};
    struct buf out;
    buf_init(&out, 16 * MIB);
    check(tok_ctx_new(&c, &e) == OK);
    const struct tok_part cut[] = {{{text.p, text.n / 2}, true}, {{text.p + text.n / 2, text.n - text.n / 2}, false}};
    for (int round = 0; round < 3; round++) {
        e = (struct error){0};
        const enum err err = round == 0   ? tok_encode_user(t, c, text, false, &ids, &e)
                             : round == 1 ? tok_encode_template(t, c, text, true, &ids, &e)
                                          : tok_encode(t, c, cut, 2, true, &ids, &e);
        check(err == OK || (e.text[0] != '\0' && e.code == err));
        for (size_t i = 0; i < ids.n; i++) {
            check(ids.p[i] < tok_count(t));
            /* the unknown token may be marked special; it stands for text, not for a command */
            check(round > 0 || !tok_is_special(t, ids.p[i]) || (tok_vocab(t)->flags[ids.p[i]] & VOCAB_UNKNOWN));
        }
        check(tok_decode(t, ids.p, ids.n, round == 1, &out, &e) == OK || out.failure != OK);
    }
    buf_fini(&out);
    tok_ctx_free(c);
}

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t n)
{
    const unsigned char *end = n > 0 ? memchr(bytes, 0, n) : NULL;
    const struct str json = {(const char *)bytes, end != NULL ? (size_t)(end - bytes) : n};
    const struct str text =
        end != NULL ? (struct str){(const char *)end + 1, n - json.n - 1} : STR("a <s>bc \xE4\xB8\xAD 12\n\xFF");
    struct tok *t = NULL;
    struct error e = {0};
    const enum err err = tok_from_json(json, (struct str){"", 0}, &t, &e);
    check((err == OK) == (t != NULL));
    if (err != OK) {
        check(e.code == err && e.text[0] != '\0' && utf8_is_valid(str_of(e.text)) && strchr(e.text, '\n') == NULL);
        return 0;
    }
    encode(t, text);
    tok_free(t);
    return 0;
}

/* A SentencePiece model under any bytes: an error with a sentence, or a tokenizer that encodes a text without a crash
 * into ids of its vocabulary, none of them special for a user's text. */
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

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t n)
{
    static const struct str text = {"  ab <s>a<x>  \xE2\x96\x81\xE4\xB8\xAD\xFF"
                                    "aab\n",
        26};
    struct tok *t = NULL;
    struct tok_ctx *c = NULL;
    struct tok_ids ids;
    struct error e = {0};
    const enum err err = tok_from_spm((struct str){(const char *)bytes, n}, true, true, &t, &e);
    check((err == OK) == (t != NULL));
    if (err != OK) {
        check(e.code == err && e.text[0] != '\0' && utf8_is_valid(str_of(e.text)) && strchr(e.text, '\n') == NULL);
        return 0;
    }
    check(tok_ctx_new(&c, &e) == OK);
    for (int trusted = 0; trusted < 2; trusted++) {
        const struct tok_part part = {text, trusted != 0};
        struct buf out;
        buf_init(&out, 16 * MIB);
        const enum err done = tok_encode(t, c, &part, 1, trusted != 0, &ids, &e);
        check(done == OK || e.text[0] != '\0');
        for (size_t i = 0; i < ids.n; i++)
            check(ids.p[i] < tok_count(t) && (trusted || !tok_is_special(t, ids.p[i])));
        check(tok_decode(t, ids.p, ids.n, true, &out, &e) == OK);
        buf_fini(&out);
    }
    tok_ctx_free(c);
    tok_free(t);
    return 0;
}

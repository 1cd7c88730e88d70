/* The fields of a request under any JSON: a refusal has a status and a sentence, and its JSON is valid; what was
 * accepted is within every limit and is accepted by the sampler too. A key file goes through its parser as well. */
#include "api/fields.h"

#include "base/json.h"
#include "sample/sample.h"

#include <math.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t n);

#define VOCAB 2048

static void check(bool ok)
{
    if (!ok)
        __builtin_trap();
}

static void check_error(const struct api_error *ae)
{
    struct buf b;
    json_t *doc = NULL;
    struct error e = {0};
    check(ae->status >= 400 && ae->status < 600 && ae->text[0] != '\0' && ae->type != NULL);
    buf_init(&b, 16384);
    api_error_json(ae, &b);
    check(json_parse(buf_str(&b), &doc, &e) == OK);
    json_decref(doc);
    buf_fini(&b);
}

static void check_fields(const struct fields *f)
{
    struct error e = {0};
    check(sample_params_check(&f->sample, VOCAB, &e) == OK);
    check(f->n >= 1 && f->n <= REQ_CHOICES_MAX && f->n_stops <= STOPS_MAX && f->n_stop_ids <= REQ_STOP_IDS_MAX);
    check(f->n_prompt_top <= LOGPROBS_MAX && f->stream_interval >= 1 && f->request_id.n <= REQ_ID_BYTES_MAX);
    for (uint32_t i = 0; i < f->n_stops; i++)
        check(f->stops[i].n > 0 && f->stops[i].n <= STOP_BYTES_MAX);
    for (uint32_t i = 0; i < f->n_stop_ids; i++)
        check(f->stop_ids[i] < VOCAB);
    check(!(f->resumable && !f->stream));
}

static void try_keys(struct str text)
{
    struct keys k;
    struct error e = {0};
    check(keys_init(&k, &e) == OK);
    if (keys_parse(&k, NULL, 0, text, &e) == OK)
        check(k.n <= KEYS_MAX && k.n_tenants >= 1 && k.n_tenants <= TENANTS_MAX);
    else
        check(e.text[0] != '\0' && k.n == 0 && k.n_tenants == 1);
    keys_fini(&k);
}

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t n)
{
    static struct fields f;
    const struct model_generation g = {NAN, NAN, NAN, NAN, -1, -1};
    const struct fields_model m = {&g, VOCAB, 512, GRAMMAR_WS_SPACED};
    const struct str text = {(const char *)bytes, n};
    struct error e = {0};
    struct api_error ae = {0};
    json_t *doc = NULL;
    if (n > 64 * 1024)
        return 0;
    if (json_parse(text, &doc, &e) != OK)
        return 0;
    fields_init(&f, m);
    if (json_is_object(doc) && fields_read(&f, doc, m, &ae))
        check_fields(&f);
    else if (json_is_object(doc))
        check_error(&ae);
    fields_fini(&f);
    json_decref(doc);
    try_keys(text);
    return 0;
}

/* API keys and tenants.
 *
 * Keys are kept as SHA-256 digests only. A key sent by a client is hashed and compared with every row, all of each, so
 * that the time says nothing about how near it was. Keys are random, so a plain hash is enough: there is nothing to
 * guess in a dictionary.
 *
 * The key file:
 *    {"tenants": [{"name": "team-a", "keys": ["<sha256 of a key, hex>", ...], "weight": 2.0, "priority": 0,
 *                  "models": ["..."], "requests_per_min": 60, "tokens_per_min": 20000}, ...]}
 * Everything but name and keys may be left out. A tenant keeps its index when the file is read again, because the
 * scheduler and the numbers know it by that; one that is gone from the file keeps its place and loses its keys.
 *
 * Budgets are buckets that hold a minute's worth and refill steadily. A request takes its prompt and all that it may
 * answer before it starts, and gets back what it did not use: so a budget cannot be overshot. */
#include "api/api_int.h"

#include "base/file.h"
#include "base/hash.h"

#include <math.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>

enum err keys_init(struct keys *k, struct error *e)
{
    *k = (struct keys){.n_tenants = 1};
    k->tenants[0] = (struct tenant){.name = "default", .weight = 1};
    return pthread_mutex_init(&k->lock, NULL) == 0 ? OK : FAIL(e, ERR_NOMEM, "no mutex for the keys");
}

void keys_fini(struct keys *k)
{
    mem_free(k->rows);
    pthread_mutex_destroy(&k->lock);
    *k = (struct keys){0};
}

static enum err digest_of(struct str key, unsigned char out[SHA256_BYTES], struct error *e)
{
    struct sha256 *h;
    TRY(sha256_new(&h, e));
    sha256_add(h, key.p, key.n);
    sha256_end(h, out);
    sha256_free(h);
    return OK;
}

/* ---- reading ---- */

/* A new list in the making; the tenants are copies until all is well. */
struct draft {
    struct key *rows;
    size_t n;
    struct tenant tenants[TENANTS_MAX];
    uint32_t n_tenants;
};

static enum err add_row(struct draft *d, const unsigned char digest[SHA256_BYTES], uint32_t tenant, struct error *e)
{
    if (d->n >= KEYS_MAX)
        return FAIL(e, ERR_LIMIT, "more than %d keys", KEYS_MAX);
    memcpy(d->rows[d->n].digest, digest, SHA256_BYTES);
    d->rows[d->n++].i_tenant = tenant;
    return OK;
}

static enum err find_tenant(struct draft *d, struct str name, uint32_t *out, struct error *e)
{
    if (name.n == 0 || name.n >= TENANT_NAME_MAX)
        return FAIL(e, ERR_INVALID, "a tenant's 'name' must have 1 to %d bytes", TENANT_NAME_MAX - 1);
    for (uint32_t i = 0; i < d->n_tenants; i++)
        if (str_is(name, d->tenants[i].name)) {
            *out = i;
            return OK;
        }
    if (d->n_tenants == TENANTS_MAX)
        return FAIL(e, ERR_LIMIT, "more than %d tenants", TENANTS_MAX);
    *out = d->n_tenants++;
    d->tenants[*out] = (struct tenant){.index = *out};
    str_show(name, d->tenants[*out].name, TENANT_NAME_MAX);
    return OK;
}

static enum err read_models(struct tenant *t, const json_t *o, struct error *e)
{
    const json_t *list = NULL;
    TRY(json_get_array(o, "models", &list, e));
    t->n_models = 0;
    if (json_array_size(list) > TENANT_MODELS_MAX)
        return FAIL(e, ERR_LIMIT, "tenant '%s' has more than %d 'models'", t->name, TENANT_MODELS_MAX);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_string(v) || json_string_length(v) >= MODEL_NAME_BYTES_MAX)
            return FAIL(e, ERR_INVALID, "tenant '%s': 'models' must be names", t->name);
        snprintf(t->models[t->n_models++], MODEL_NAME_BYTES_MAX, "%s", json_string_value(v));
    }
    return OK;
}

static enum err read_tenant(struct draft *d, const json_t *o, struct error *e)
{
    struct str name = {0};
    uint32_t i = 0;
    uint64_t requests = 0, tokens = 0;
    double weight = 1, priority = NAN;
    const json_t *keys = NULL;
    if (!json_is_object(o))
        return FAIL(e, ERR_INVALID, "'tenants' must hold objects");
    TRY(json_get_str(o, "name", &name, e));
    TRY(find_tenant(d, name, &i, e));
    struct tenant *t = &d->tenants[i];
    TRY(json_get_f64(o, "weight", 0.001, 1000, &weight, e));
    TRY(json_get_f64(o, "priority", INT32_MIN, INT32_MAX, &priority, e));
    TRY(json_get_u64(o, "requests_per_min", 1, 1000000000, &requests, e));
    TRY(json_get_u64(o, "tokens_per_min", 1, 1000000000000, &tokens, e));
    TRY(json_get_array(o, "keys", &keys, e));
    TRY(read_models(t, o, e));
    const bool is_new_budget = t->requests_per_min != requests || t->tokens_per_min != tokens;
    t->weight = weight;
    t->has_priority = !isnan(priority);
    t->priority = t->has_priority ? (int32_t)priority : 0;
    t->requests_per_min = requests;
    t->tokens_per_min = tokens;
    if (is_new_budget) {
        t->requests_left = (double)requests;
        t->tokens_left = (double)tokens;
    }
    for (size_t k = 0; k < json_array_size(keys); k++) {
        unsigned char digest[SHA256_BYTES];
        const json_t *v = json_array_get(keys, k);
        if (!json_is_string(v) || !sha256_parse((struct str){json_string_value(v), json_string_length(v)}, digest))
            return FAIL(e, ERR_INVALID, "tenant '%s': 'keys' must be SHA-256 digests of 64 hex digits", t->name);
        TRY(add_row(d, digest, i, e));
    }
    return OK;
}

static enum err read_file(struct draft *d, struct str text, struct error *e)
{
    json_t *doc = NULL;
    const json_t *tenants = NULL;
    TRY(json_parse(text, &doc, e));
    enum err err = json_is_object(doc) ? json_get_array(doc, "tenants", &tenants, e)
                                       : FAIL(e, ERR_INVALID, "it must be an object with 'tenants'");
    if (err == OK && tenants == NULL)
        err = FAIL(e, ERR_INVALID, "it has no 'tenants'");
    for (size_t i = 0; err == OK && i < json_array_size(tenants); i++)
        err = read_tenant(d, json_array_get(tenants, i), e);
    json_decref(doc);
    return err;
}

static enum err fill_draft(struct draft *d, const char *const *plain, size_t n_plain, struct str text, struct error *e)
{
    for (size_t i = 0; i < n_plain; i++) {
        unsigned char digest[SHA256_BYTES];
        const struct str key = str_of(plain[i]);
        if (key.n == 0 || key.n > KEY_BYTES_MAX)
            return FAIL(e, ERR_INVALID, "an API key must have 1 to %d bytes", KEY_BYTES_MAX);
        TRY(digest_of(key, digest, e));
        TRY(add_row(d, digest, 0, e));
    }
    return text.p != NULL ? read_file(d, text, e) : OK;
}

enum err keys_parse(struct keys *k, const char *const *plain, size_t n_plain, struct str text, struct error *e)
{
    struct draft *d = mem_zalloc(sizeof *d);
    if (d != NULL)
        d->rows = mem_array(KEYS_MAX, sizeof *d->rows);
    if (d == NULL || d->rows == NULL) {
        mem_free(d);
        return FAIL(e, ERR_NOMEM, "no memory for keys");
    }
    pthread_mutex_lock(&k->lock);
    memcpy(d->tenants, k->tenants, sizeof d->tenants);
    d->n_tenants = k->n_tenants;
    const enum err err = fill_draft(d, plain, n_plain, text, e);
    if (err == OK) {
        memcpy(k->tenants, d->tenants, sizeof k->tenants);
        k->n_tenants = d->n_tenants;
        mem_free(k->rows);
        k->rows = d->rows;
        k->n = d->n;
        d->rows = NULL;
        atomic_store(&k->required, k->n > 0 || text.p != NULL);
    }
    pthread_mutex_unlock(&k->lock);
    mem_free(d->rows);
    mem_free(d);
    return err;
}

enum err keys_load(struct keys *k, const char *const *plain, size_t n_plain, const char *path, struct error *e)
{
    char *text = NULL;
    size_t n = 0;
    if (path != NULL)
        TRY(file_read_all(path, KEY_FILE_BYTES_MAX, &text, &n, e));
    const enum err err = keys_parse(k, plain, n_plain, (struct str){text, n}, e);
    if (err != OK && path != NULL)
        error_prefix(e, "%s", path);
    mem_free(text);
    return err;
}

/* ---- asking ---- */

int keys_find(struct keys *k, struct str key)
{
    unsigned char digest[SHA256_BYTES];
    int found = -1;
    if (digest_of(key, digest, NULL) != OK)
        return -1;
    pthread_mutex_lock(&k->lock);
    for (size_t i = 0; i < k->n; i++) {
        const int same = CRYPTO_memcmp(digest, k->rows[i].digest, SHA256_BYTES) == 0;
        found = same ? (int)k->rows[i].i_tenant : found; /* no early way out */
    }
    pthread_mutex_unlock(&k->lock);
    return found;
}

bool tenant_may_use(struct keys *k, uint32_t tenant, struct str model)
{
    pthread_mutex_lock(&k->lock);
    const struct tenant *t = &k->tenants[tenant];
    bool may = t->n_models == 0;
    for (uint32_t i = 0; i < t->n_models; i++)
        may |= str_is(model, t->models[i]);
    pthread_mutex_unlock(&k->lock);
    return may;
}

bool tenant_priority(struct keys *k, uint32_t tenant, int32_t *out)
{
    pthread_mutex_lock(&k->lock);
    const bool has = k->tenants[tenant].has_priority;
    if (has)
        *out = k->tenants[tenant].priority;
    pthread_mutex_unlock(&k->lock);
    return has;
}

uint32_t tenant_name(struct keys *k, uint32_t tenant, char out[TENANT_NAME_MAX], double *weight)
{
    pthread_mutex_lock(&k->lock);
    const uint32_t n = k->n_tenants;
    const struct tenant *t = &k->tenants[tenant < n ? tenant : 0];
    memcpy(out, t->name, TENANT_NAME_MAX);
    if (weight != NULL)
        *weight = t->weight;
    pthread_mutex_unlock(&k->lock);
    return n;
}

static void refill(struct tenant *t, uint64_t now_ns)
{
    const double minutes = t->refilled_ns != 0 ? (double)(now_ns - t->refilled_ns) / 60e9 : 0;
    t->refilled_ns = now_ns;
    t->requests_left = fmin(t->requests_left + minutes * (double)t->requests_per_min, (double)t->requests_per_min);
    t->tokens_left = fmin(t->tokens_left + minutes * (double)t->tokens_per_min, (double)t->tokens_per_min);
}

static uint32_t seconds_until(double missing, uint64_t per_min)
{
    const double s = ceil(missing * 60 / (double)per_min);
    return s < 1 ? 1 : s > 3600 ? 3600 : (uint32_t)s;
}

bool tenant_take(struct keys *k, uint32_t tenant, uint64_t tokens, uint64_t now_ns, struct api_error *ae)
{
    bool ok = true;
    pthread_mutex_lock(&k->lock);
    struct tenant *t = &k->tenants[tenant];
    refill(t, now_ns);
    if (t->requests_per_min != 0 && t->requests_left < 1) {
        ok = api_fail(
            ae, 429, NULL, "the limit of %llu requests per minute is reached", (unsigned long long)t->requests_per_min);
        ae->retry_s = seconds_until(1 - t->requests_left, t->requests_per_min);
    } else if (t->tokens_per_min != 0 && tokens > t->tokens_per_min) {
        ok = api_fail_code(ae, 429, NULL, "tokens",
            "the request may use %llu tokens and the limit is %llu per minute; a smaller max_tokens helps",
            (unsigned long long)tokens, (unsigned long long)t->tokens_per_min);
    } else if (t->tokens_per_min != 0 && t->tokens_left < (double)tokens) {
        ok = api_fail_code(ae, 429, NULL, "tokens", "the limit of %llu tokens per minute is reached",
            (unsigned long long)t->tokens_per_min);
        ae->retry_s = seconds_until((double)tokens - t->tokens_left, t->tokens_per_min);
    } else {
        t->requests_left -= t->requests_per_min != 0 ? 1 : 0;
        t->tokens_left -= t->tokens_per_min != 0 ? (double)tokens : 0;
    }
    pthread_mutex_unlock(&k->lock);
    return ok;
}

void tenant_settle(struct keys *k, uint32_t tenant, uint64_t taken, uint64_t used)
{
    pthread_mutex_lock(&k->lock);
    struct tenant *t = &k->tenants[tenant];
    if (t->tokens_per_min != 0 && taken > used)
        t->tokens_left = fmin(t->tokens_left + (double)(taken - used), (double)t->tokens_per_min);
    pthread_mutex_unlock(&k->lock);
}

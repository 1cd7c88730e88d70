/* Reading the fields of a request; see json_in.h. */
#include "api/json_in.h"

#include <math.h>

const json_t *in_get(struct in in, const char *key)
{
    const json_t *v = json_object_get(in.o, key);
    return v == NULL || json_is_null(v) ? NULL : v;
}

/* A whole number, also when it is written as 3.0. */
static bool whole(const json_t *v, int64_t *out)
{
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return true;
    }
    if (!json_is_real(v))
        return false;
    const double d = json_real_value(v);
    if (!(fabs(d) < 9007199254740992.0) || d != floor(d)) /* 2^53: exact in a double */
        return false;
    *out = (int64_t)d;
    return true;
}

bool in_i64(struct in in, const char *key, int64_t min, int64_t max, int64_t *out)
{
    const json_t *v = in_get(in, key);
    int64_t n = 0;
    if (v == NULL)
        return true;
    if (!whole(v, &n) || n < min || n > max)
        return api_fail(
            in.ae, 400, key, "'%s' must be a whole number from %lld to %lld", key, (long long)min, (long long)max);
    *out = n;
    return true;
}

bool in_u32(struct in in, const char *key, uint32_t min, uint32_t max, uint32_t *out)
{
    int64_t n = *out;
    if (!in_i64(in, key, min, max, &n))
        return false;
    *out = (uint32_t)n;
    return true;
}

bool in_f32(struct in in, const char *key, double min, double max, float *out)
{
    const json_t *v = in_get(in, key);
    if (v == NULL)
        return true;
    const double d = json_is_number(v) ? json_number_value(v) : NAN;
    if (!(d >= min && d <= max))
        return api_fail(in.ae, 400, key, "'%s' must be a number from %g to %g", key, min, max);
    *out = (float)d + 0.0F; /* -0 becomes 0 */
    return true;
}

bool in_bool(struct in in, const char *key, bool *out)
{
    const json_t *v = in_get(in, key);
    if (v == NULL)
        return true;
    if (!json_is_boolean(v))
        return api_fail(in.ae, 400, key, "'%s' must be true or false", key);
    *out = json_is_true(v);
    return true;
}

bool in_str(struct in in, const char *key, size_t bytes_max, struct str *out)
{
    const json_t *v = in_get(in, key);
    if (v == NULL)
        return true;
    if (!json_is_string(v))
        return api_fail(in.ae, 400, key, "'%s' must be a string", key);
    if (json_string_length(v) > bytes_max)
        return api_fail(in.ae, 400, key, "'%s' has %zu bytes; the limit is %zu", key, json_string_length(v), bytes_max);
    *out = (struct str){json_string_value(v), json_string_length(v)};
    return true;
}

bool in_object(struct in in, const char *key, const json_t **out)
{
    const json_t *v = in_get(in, key);
    if (v != NULL && !json_is_object(v))
        return api_fail(in.ae, 400, key, "'%s' must be an object", key);
    *out = v != NULL ? v : *out;
    return true;
}

bool in_array(struct in in, const char *key, size_t n_max, const json_t **out)
{
    const json_t *v = in_get(in, key);
    if (v == NULL)
        return true;
    if (!json_is_array(v))
        return api_fail(in.ae, 400, key, "'%s' must be an array", key);
    if (json_array_size(v) > n_max)
        return api_fail(in.ae, 400, key, "'%s' has %zu items; the limit is %zu", key, json_array_size(v), n_max);
    *out = v;
    return true;
}

bool in_token_id(const json_t *v, uint32_t vocab, const char *key, uint32_t *out, struct api_error *ae)
{
    int64_t n = 0;
    if (!whole(v, &n) || n < 0 || n >= (int64_t)vocab)
        return api_fail(ae, 400, key, "'%s' must hold token ids from 0 to %u", key, vocab - 1);
    *out = (uint32_t)n;
    return true;
}

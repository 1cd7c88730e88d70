/* Reading the fields of a request. Each reader leaves *out alone when the field is missing or null, sets it when it is
 * right, and otherwise fails naming the field and what it may be.
 *
 * Threads: one at a time. */
#ifndef API_JSON_IN_H
#define API_JSON_IN_H

#include "api/api_int.h"

struct in {
    const json_t *o;
    struct api_error *ae;
};

const json_t *in_get(struct in in, const char *key); /* NULL when missing or null */
bool in_u32(struct in in, const char *key, uint32_t min, uint32_t max, uint32_t *out);
bool in_i64(struct in in, const char *key, int64_t min, int64_t max, int64_t *out);
bool in_f32(struct in in, const char *key, double min, double max, float *out);
bool in_bool(struct in in, const char *key, bool *out);
bool in_str(struct in in, const char *key, size_t bytes_max, struct str *out); /* borrowed from the document */
bool in_object(struct in in, const char *key, const json_t **out);
bool in_array(struct in in, const char *key, size_t n_max, const json_t **out);

/* One token id: a whole number below vocab. */
bool in_token_id(const json_t *v, uint32_t vocab, const char *key, uint32_t *out, struct api_error *ae);

#endif

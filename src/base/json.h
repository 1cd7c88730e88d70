/* The JSON door. Parsing is jansson's, behind our limits: bytes, nesting depth, duplicate keys refused, memory counted
 * by mem.h. The getters check type and range and name the field in the error, so no caller touches a json_t blindly.
 *
 * Threads: any; a document belongs to one thread at a time. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include "base/base.h"

#include <jansson.h>

/* Parse a whole document; the caller owns it (json_decref). The error says line and column. */
enum err json_parse(struct str text, json_t **out, struct error *e) MUST_CHECK;

/* Read and parse a file of at most bytes_max; the error starts with the path. */
enum err json_parse_file(const char *path, uint64_t bytes_max, json_t **out, struct error *e) MUST_CHECK;

/* Field getters over an object. A missing or null field leaves *out as it is (set your default first) and is OK; a
 * field of another type or out of range is ERR_INVALID naming it. Integers written as 3.0 are accepted. */
enum err json_get_u64(
    const json_t *o, const char *key, uint64_t min, uint64_t max, uint64_t *out, struct error *e) MUST_CHECK;
enum err json_get_f64(
    const json_t *o, const char *key, double min, double max, double *out, struct error *e) MUST_CHECK;
enum err json_get_bool(const json_t *o, const char *key, bool *out, struct error *e) MUST_CHECK;
enum err json_get_str(const json_t *o, const char *key, struct str *out, struct error *e) MUST_CHECK; /* borrowed */
enum err json_get_object(const json_t *o, const char *key, const json_t **out, struct error *e) MUST_CHECK;
enum err json_get_array(const json_t *o, const char *key, const json_t **out, struct error *e) MUST_CHECK;

#endif

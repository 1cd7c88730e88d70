/* What the doors of bench/cuda and of the requests' suite open: a device by its name, a shape by its name. */
#ifndef TESTING_DUMMY_H
#define TESTING_DUMMY_H

#include "model/dummy.h"
#include "model/model.h"

/* "cuda", "cpu", or a row of the CPU's kernels. */
enum err testing_ops(const char *device, const struct ops **out, struct error *e) MUST_CHECK;

/* A model by its name; "small-64" and "small-128", heads of that size, are what a sanitizer gets through: two layers,
 * narrow ones, with tiles that are not full. "thin-64" has so few heads that a block ends several tiles of theirs. */
enum err testing_config(const char *shape, struct model_config *cfg, struct error *e) MUST_CHECK;

/* What a server would have counted before it opened these: of a file, or random ones of that dtype (source NULL). */
uint64_t testing_weight_bytes(const struct model_config *cfg, const struct model_source *source, enum dtype dtype,
    const struct decoder_options *o);

#endif

/* What the tests of model/ share: a decoder over a tiny trained model, or over dummy weights of a shrunk shape. */
#ifndef TESTING_MODEL_H
#define TESTING_MODEL_H

#include "testing.h"

#include "cpu/cpu.h"
#include "model/decoder_int.h"
#include "model/dummy.h"

#define TINY_PATH "tests/data/tiny/tiny-1m-q8_0.gguf"

struct rig {
    struct model_source *source; /* NULL over dummy weights */
    struct dummy *dummy;
    struct model_config *cfg;
    struct decoder *d;
};

/* Options that fit a context of that many tokens in one sequence. */
struct decoder_options rig_options(uint32_t context);

void rig_open_tiny(struct rig *r, const struct decoder_options *o);

/* A well-known shape made small: 2 layers, hidden 256, heads of 64, 512 tokens; what else it has stays. */
void rig_small_config(const char *name, struct model_config *out);
enum err rig_open_dummy(
    struct rig *r, const struct model_config *cfg, enum dtype dtype, uint64_t seed, struct error *e);
void rig_close(struct rig *r);

/* Logits of each of n ids at positions 0 .. n-1, into out[n][vocab], in one step. */
void rig_run(struct rig *r, const int32_t *ids, uint32_t n, float *out);

#endif

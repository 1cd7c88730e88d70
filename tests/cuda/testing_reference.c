/* See testing_reference.h. */
#include "testing_reference.h"

#include "testing_asks.h"

void testing_reference(const struct sample_args *a)
{
    struct error e;
    struct sampler *s = NULL;
    const enum err err = sampler_new(a->n, &s, &e);
    assert(err == OK);
    for (uint32_t i = 0; i < a->n_asks; i++)
        ask_here(s, a, i, &a->out[i], a->top + (size_t)i * SAMPLE_TOP_MAX);
    sampler_free(s);
}

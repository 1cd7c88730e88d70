/* See describe.h. */
#include "cuda/describe.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void described_add(struct described *r, uint32_t n_rows, const char *by)
{
    if (r->n_products == 0 || strcmp(r->product[r->n_products - 1].by, by) != 0) {
        if (r->n_products == DESCRIBED_WAYS)
            return;
        r->product[r->n_products++].by = by;
    }
    r->product[r->n_products - 1].to = n_rows;
}

/* What does not fit is cut off: the line is for people. */
static void put(char out[DESCRIBE_BYTES], const char *fmt, ...) PRINTF_LIKE(2, 3);
static void put(char out[DESCRIBE_BYTES], const char *fmt, ...)
{
    const size_t at = strlen(out);
    va_list args;
    va_start(args, fmt);
    vsnprintf(out + at, DESCRIBE_BYTES - at, fmt, args);
    va_end(args);
}

static void put_products(char out[DESCRIBE_BYTES], const struct described *r)
{
    put(out, "%s products by", r->format);
    for (uint32_t i = 0; i < r->n_products; i++)
        if (r->n_products == 1)
            put(out, " %s", r->product[i].by);
        else if (i + 1 == r->n_products)
            put(out, ", %s beyond", r->product[i].by);
        else
            put(out, "%s %s to %u%s", i == 0 ? "" : ",", r->product[i].by, r->product[i].to, i == 0 ? " rows" : "");
    if (r->many_from > 0)
        put(out, ", gate and up by many from %u where it fills the card", r->many_from);
    if (r->has_experts)
        put(out, ", experts by skinny");
}

void described_text(const struct described *r, char out[DESCRIBE_BYTES])
{
    const struct cuda_card *c = &r->card;
    out[0] = '\0';
    put(out, "%s (%u.%u, %u units, %.0f GiB): ", c->name, c->capability / 10, c->capability % 10, c->n_units,
        (double)c->memory_bytes / (1 << 30));
    if (r->resident_to > 0)
        put(out, "decoding of %u to %u rows resident; ", r->resident_from, r->resident_to);
    put_products(out, r);
    put(out, "; attention by %s", r->decode);
    if (strcmp(r->decode, r->prompts) != 0)
        put(out, ", of prompts by %s", r->prompts);
    put(out, ", heads of %u, %s cache", r->head_dim, r->cache);
}

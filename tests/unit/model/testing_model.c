/* See testing_model.h. */
#include "model/testing_model.h"

#include "base/mem.h"

struct decoder_options rig_options(uint32_t context)
{
    return (struct decoder_options){.ops = cpu_ops(),
        .threads = 2,
        .rows_max = 16,
        .out_max = 16,
        .seqs_max = 1,
        .context_max = context,
        .kv_dtype = DTYPE_F16,
        .block_tokens = 16,
        .n_blocks = (context + 15) / 16};
}

void rig_open_tiny(struct rig *r, const struct decoder_options *o)
{
    struct error e;
    *r = (struct rig){.cfg = mem_zalloc(sizeof *r->cfg)};
    assert_non_null(r->cfg);
    assert_ok(e, model_source_open(TINY_PATH, &r->source, &e));
    assert_ok(e, model_config_read(r->source, r->cfg, &e));
    const struct weight_source src = decoder_file_source(r->source);
    assert_ok(e, decoder_open(&src, r->cfg, o, &r->d, &e));
}

void rig_small_config(const char *name, struct model_config *out)
{
    struct error e;
    assert_ok(e, dummy_config(name, out, &e));
    out->n_layers = 2;
    out->hidden = 256;
    out->n_heads = 4;
    out->n_kv_heads = 2;
    out->head_dim = out->rope.dims = 64;
    out->vocab = 512;
    out->context_length = 64;
    out->ffn = out->n_experts > 0 ? 0 : 512;
    out->expert_ffn = out->n_experts > 0 ? 256 : 0;
    out->n_experts = MIN(out->n_experts, 16u);
}

enum err rig_open_dummy(struct rig *r, const struct model_config *cfg, enum dtype dtype, uint64_t seed, struct error *e)
{
    *r = (struct rig){.cfg = mem_zalloc(sizeof *r->cfg)};
    assert_non_null(r->cfg);
    *r->cfg = *cfg;
    TRY(dummy_new(dtype, seed, &r->dummy, e));
    const struct weight_source src = dummy_source(r->dummy);
    const struct decoder_options o = rig_options(cfg->context_length);
    return decoder_open(&src, cfg, &o, &r->d, e);
}

void rig_close(struct rig *r)
{
    decoder_close(r->d);
    dummy_free(r->dummy);
    model_source_close(r->source);
    mem_free(r->cfg);
    *r = (struct rig){0};
}

void rig_run(struct rig *r, const int32_t *ids, uint32_t n, float *out)
{
    struct error e;
    uint32_t pos[16], seq[16] = {0}, table[64];
    assert_true(n <= COUNT_OF(pos) && r->d->kv.n_blocks <= COUNT_OF(table));
    for (uint32_t i = 0; i < n; i++)
        pos[i] = i;
    for (uint32_t i = 0; i < r->d->kv.n_blocks; i++)
        table[i] = i;
    const struct batch_seq one = {.n_rows = n, .n_kv = n};
    const struct step s = {.n_rows = n,
        .n_seqs = 1,
        .n_out = n,
        .n_table = r->d->kv.n_blocks,
        .token = ids,
        .pos = pos,
        .seq = seq,
        .seqs = &one,
        .table = table,
        .kv_slot = pos,
        .out_row = pos};
    assert_ok(e, decoder_step(r->d, &s, &e));
    for (uint32_t i = 0; i < n; i++)
        assert_ok(e, decoder_read_logits(r->d, i, out + (size_t)i * decoder_vocab(r->d), &e));
}

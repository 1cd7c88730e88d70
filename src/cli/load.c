/* Loading a model; see load.h. */
#include "cli/load.h"

#include "base/aside.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/team.h"
#include "cli/inspect_int.h"
#include "cli/note.h"
#include "cpu/cpu.h"
#ifdef QUERN_CUDA
#include "cuda/cuda.h"
#endif
#include "hub/hub.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum err load_pick_ops(const struct options *o, const struct ops **out, struct error *e)
{
    *out = cpu_ops();
    if (o->cpu_variant != NULL) {
        *out = cpu_ops_by_name(o->cpu_variant);
        return *out != NULL
                   ? OK
                   : FAIL(e, ERR_INVALID, "option --cpu-variant: '%s' is not one that runs here", o->cpu_variant);
    }
    if (o->device == DEVICE_CPU)
        return OK;
#ifdef QUERN_CUDA
    const char *why = NULL;
    const struct ops *cuda = cuda_ops(&why);
    if (cuda != NULL)
        *out = cuda;
    else if (o->device == DEVICE_CUDA)
        return FAIL(e, ERR_UNSUPPORTED, "there is no CUDA device to use: %s", why);
#else
    if (o->device == DEVICE_CUDA)
        return FAIL(e, ERR_UNSUPPORTED, "this quern was built without CUDA; build it with the cuda preset");
#endif
    return OK;
}

/* ---- what the model is ---- */

static enum err describe_dummy(struct load *l, const struct options *o, const struct load_wants *w, struct error *e)
{
    char path[PATH_BYTES_MAX];
    struct error unknown = {0}, missing = {0};
    if (o->n_args == 0) {
        size_t n;
        return FAIL(e, ERR_INVALID, "--load-format dummy needs a MODEL: a built-in shape such as %s, or a model",
            dummy_names(&n)[0]);
    }
    if (dummy_config(o->args[0], &l->config, &unknown) == OK) {
        l->config.generation = (struct model_generation){NAN, NAN, NAN, NAN, -1, -1}; /* a shape suggests nothing */
        return OK;
    }
    if (find_model(o, w->find == FIND_LOCAL ? FIND_LOCAL : FIND_FETCH, path, &missing) != OK)
        return FAIL(e, missing.code, "%s, and no model of that name was found either", unknown.text);
    TRY(model_source_open(path, &l->source, e));
    return model_config_read(l->source, &l->config, e);
}

static enum err describe_file(struct load *l, const struct options *o, const struct load_wants *w, struct error *e)
{
    char path[PATH_BYTES_MAX];
    if (o->weight_dtype != 0)
        return FAIL(e, ERR_INVALID,
            "option --dtype is for --load-format dummy; weights of a file are computed as they are stored");
    TRY(find_model(o, w->find, path, e));
    TRY(model_source_open(path, &l->source, e));
    return model_config_read(l->source, &l->config, e);
}

/* The file's or folder's own name says more than what is written inside ("Smollm2 135M 8k Lc100K Mix1 Ep2"). */
static void name_for_people(struct load *l)
{
    struct str name = str_of(l->source != NULL ? model_source_path(l->source) : l->config.name);
    while (name.n > 1 && name.p[name.n - 1] == '/')
        name.n--;
    for (size_t i = name.n; i > 0 && l->source != NULL; i--)
        if (name.p[i - 1] == '/') {
            name = (struct str){name.p + i, name.n - i};
            break;
        }
    if (str_has_suffix(name, STR(".gguf")))
        name.n -= 5;
    str_show(name, l->name, sizeof l->name);
}

enum err load_describe(struct load *l, const struct options *o, const struct load_wants *w, struct error *e)
{
    const bool dummy = o->load_format == LOAD_DUMMY;
    TRY(dummy ? describe_dummy(l, o, w, e) : describe_file(l, o, w, e));
    name_for_people(l);
    if (l->config.quant_refusal[0] != '\0' && !dummy)
        return FAIL(e, ERR_UNSUPPORTED, "%s", l->config.quant_refusal);
    if (!dummy) {
        const struct weight_source src = decoder_file_source(l->source);
        if (decoder_check(&src, &l->config, e) != OK)
            return error_prefix(e, "this model cannot run");
    }
    struct fit_wants wants = fit_wants_of(o, CHAT_ROWS_MAX, w->out_rows);
    wants.ops = l->ops;
    if (wants.memory_bytes == 0 && l->ops != NULL && l->ops->memory_free != NULL)
        wants.memory_bytes = l->ops->memory_free();
    return fit_measure(&l->fit, &l->config, dummy ? NULL : l->source, &wants, e);
}

/* ---- text ---- */

static void add_stop_id(struct load *l, uint32_t id)
{
    for (uint32_t i = 0; i < l->n_stop_ids; i++)
        if (l->stop_ids[i] == id)
            return;
    if (id != TOK_NONE && id < l->config.vocab && l->n_stop_ids < LOAD_STOP_IDS_MAX)
        l->stop_ids[l->n_stop_ids++] = id;
}

const char *load_cache_dir(const struct options *o, const char *name, char *path)
{
    struct hub *hub;
    struct hub_options ho;
    struct error e = {0};
    hub_options_init(&ho);
    ho.cache_dir = o->cache_dir;
    ho.offline = true;
    if (hub_open(&hub, &ho, &e) != OK)
        return NULL;
    const bool ok = path_join(path, hub_cache_dir(hub), name, &e) == OK;
    hub_close(hub);
    return ok ? path : NULL;
}

static enum err open_text(struct load *l, const struct options *o, const struct load_wants *w, struct error *e)
{
    char copies[PATH_BYTES_MAX];
    for (uint32_t i = 0; i < l->config.n_eos; i++)
        add_stop_id(l, l->config.eos_ids[i]);
    if (l->source == NULL)
        return OK;
    TRY(model_tokenizer_open(l->source, load_cache_dir(o, "vocab", copies), &l->tok, e));
    TRY(tok_ctx_new(&l->tok_ctx, e));
    const struct tok_roles *roles = tok_roles_of(l->tok);
    add_stop_id(l, roles->eos);
    add_stop_id(l, roles->eot);
    add_stop_id(l, roles->eom);
    if (!w->chat)
        return OK;
    TRY(model_chat_open(l->source, &l->chats, e));
    return chat_set_count(l->chats) > 0 ? chat_set_pick(l->chats, NULL, false, &l->chat, e) : OK;
}

enum err load_encode(
    struct load *l, struct str text, bool trusted, bool add_special, struct tok_ids *out, struct error *e)
{
    if (l->tok != NULL) {
        const struct tok_part part = {text, trusted};
        return tok_encode(l->tok, l->tok_ctx, &part, 1, add_special, out, e);
    }
    mem_free(l->byte_ids);
    l->byte_ids = mem_array(text.n, sizeof *l->byte_ids);
    if (l->byte_ids == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a text of %zu bytes", text.n);
    for (size_t i = 0; i < text.n; i++)
        l->byte_ids[i] = (unsigned char)text.p[i] % l->config.vocab;
    *out = (struct tok_ids){l->byte_ids, text.n};
    return OK;
}

/* ---- weights ---- */

static enum err open_decoder(
    struct load *l, const struct options *o, const struct load_wants *w, const _Atomic bool *stop, struct error *e)
{
    struct note_progress progress;
    struct weight_source src;
    char choices[PATH_BYTES_MAX];
    if (o->load_format == LOAD_DUMMY) {
        const uint64_t seed = o->seed == OPTION_UNSET ? 0 : o->seed;
        TRY(dummy_new(fit_weight_dtype(o->weight_dtype), seed, &l->dummy, e));
        src = dummy_source(l->dummy);
    } else
        src = decoder_file_source(l->source);
    note_progress_start(&progress, o, "loading");
    struct decoder_options d = {.ops = l->ops,
        .threads = l->threads,
        .rows_max = CHAT_ROWS_MAX,
        .out_max = w->out_rows,
        .seqs_max = 1,
        .context_max = l->fit.context,
        .kv_dtype = l->fit.kv_dtype,
        .block_tokens = FIT_BLOCK_TOKENS,
        .n_blocks = (l->fit.context + FIT_BLOCK_TOKENS - 1) / FIT_BLOCK_TOKENS,
        .deterministic = o->deterministic,
        .fp8 = o->quantization == QUANTIZATION_FP8,
        .choices_dir = load_cache_dir(o, "choices", choices),
        .progress = note_progress_step,
        .progress_ctx = &progress,
        .stop = stop,
        .fit = &l->fit};
    struct error first = {0};
    enum err err = decoder_open(&src, &l->config, &d, &l->decoder, &first);
    if (err == ERR_UNSUPPORTED && o->device == DEVICE_AUTO && l->ops != cpu_ops()) {
        note_progress_end(&progress);
        note_warning(o, "%s cannot run this model (%s); taking the CPU", l->ops->name, first.text);
        d.ops = l->ops = cpu_ops();
        if (o->kv_cache_dtype == KV_AUTO)
            d.kv_dtype = l->fit.kv_dtype = DTYPE_F16; /* as large as BF16, which only the other likes */
        first = (struct error){0};
        err = decoder_open(&src, &l->config, &d, &l->decoder, &first);
    }
    note_progress_end(&progress);
    if (err != OK && e != NULL && e->code == OK)
        *e = first;
    TRY(err);
    return sequence_new(l->decoder, &l->seq, e);
}

struct text_errand {
    struct load *l;
    const struct options *o;
    const struct load_wants *w;
};

static enum err run_text_errand(void *ctx, struct error *e)
{
    struct text_errand *x = ctx;
    return open_text(x->l, x->o, x->w, e);
}

/* The tokenizer is made on one core while the others pack weights; when it fails, binding is given up. */
static enum err open_text_and_decoder(
    struct load *l, const struct options *o, const struct load_wants *w, struct error *e)
{
    struct text_errand x = {l, o, w};
    struct aside text;
    struct error second = {0};
    aside_start(&text, run_text_errand, &x);
    const enum err err = open_decoder(l, o, w, &text.failed, &second);
    TRY(aside_join(&text, e));
    if (err != OK && e != NULL && e->code == OK)
        *e = second;
    return err;
}

const char *load_choices_text(const struct decoder *d, char out[LOAD_CHOICES_TEXT])
{
    const struct device_choices *c = d != NULL ? decoder_choices(d) : NULL;
    out[0] = '\0';
    if (c != NULL && c->was_read)
        snprintf(
            out, LOAD_CHOICES_TEXT, ", %u of %u products as measured at an earlier start", c->n_chosen, c->n_shapes);
    else if (c != NULL && c->n_measured > 0)
        snprintf(out, LOAD_CHOICES_TEXT, ", %u of %u products chosen by measuring %u in %.2f s", c->n_chosen,
            c->n_shapes, c->n_measured, c->seconds);
    return out;
}

static void say_loaded(const struct load *l, const struct options *o, uint64_t start_ns, const struct clock *clock)
{
    static const char *const reasons[] = {[FIT_BY_MODEL] = "the model's",
        [FIT_BY_OPTION] = "as asked for",
        [FIT_BY_DEFAULT] = "the model has more: --max-model-len",
        [FIT_BY_MEMORY] = "what fits into memory"};
    char bytes[24], threads[32] = "", choices[LOAD_CHOICES_TEXT], rows[DESCRIBE_BYTES];
    if (strncmp(l->ops->name, "cpu", 3) == 0)
        snprintf(threads, sizeof threads, ", %u thread%s", l->threads, l->threads == 1 ? "" : "s");
    note(o, "%s: %s %s%s on %s%s%s, context %u (%s), ready in %.2f s", l->name,
        inspect_show_bytes(l->fit.weight_bytes, bytes), o->load_format == LOAD_DUMMY ? "of random " : "",
        dtype_name(l->fit.work_dtype), l->ops->name, threads, load_choices_text(l->decoder, choices), l->fit.context,
        reasons[l->fit.reason], (double)(clock_now(clock) - start_ns) / 1e9);
    note(o, "%s", decoder_describe(l->decoder, rows));
}

enum err load_open(struct load *l, const struct options *o, const struct load_wants *w, struct error *e)
{
    struct clock clock;
    clock_init(&clock);
    TRY(load_pick_ops(o, &l->ops, e));
    TRY(load_describe(l, o, w, e)); /* may fetch, which shows its own time */
    const uint64_t start_ns = clock_now(&clock);
    l->threads = o->threads != 0 ? (uint32_t)o->threads : team_cores();
    TRY(fit_choose(&l->fit, &l->config, o->max_model_len, CHAT_CONTEXT_DEFAULT, e));
    TRY(open_text_and_decoder(l, o, w, e));
    say_loaded(l, o, start_ns, &clock);
    return OK;
}

void load_close(struct load *l)
{
    sequence_free(l->seq);
    decoder_close(l->decoder);
    dummy_free(l->dummy);
    chat_set_free(l->chats);
    tok_ctx_free(l->tok_ctx);
    tok_free(l->tok);
    model_source_close(l->source);
    mem_free(l->byte_ids);
    *l = (struct load){0};
}

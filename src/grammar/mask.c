/* Masks: which tokens may come next. Each reading of a walk has its own set of tokens; the mask of a walk is the union.
 *
 * A set is found by walking the vocabulary's trie and the automaton together, where a byte that leads nowhere rules out
 * a whole subtree. States that read any characters of a class for ever start from the class's tokens and try only the
 * others (class.c). States from which most characters lead into such a state (behind the < of free text that must not
 * become a tag) start from the same tokens, less those that are found to fail.
 *
 * Sets are kept. What a set depends on is the state and as many frames of the stack, from the top, as any token pops:
 * the walk notes the lowest frame it looked at. So the key is (state, k frames), and for fewer frames than it takes
 * there is a note that says "look at one more". Of a loop's frame the rounds matter only near its limits: a set is also
 * kept for every number of rounds that is further away from them than any token goes (SPANS), and only otherwise for
 * the exact number. Near the maximal depth sets are not kept, because there the depth decides.
 *
 * Inside a string of bounded length nearly every number of rounds would be exact, since some token is always long
 * enough to meet the end. There, where rounds are characters of a class, one set serves them all: each token with the
 * number of rounds it needs, the least first. A token that needs so many is allowed wherever so many are left. Where a
 * minimum has not been reached, and the maximum is out of every token's reach, it is the same with the rounds that must
 * have been before a token.
 *
 * Threads: readers take no lock. A set is written once, then published in a table of atomic pointers; writers take a
 * mutex for the time of a copy. The memory for sets is one block, made with the grammar and touched as it fills; when
 * it is full, sets are made each time. */
#include "grammar/walk.h"

#include <pthread.h>
#include <string.h>

#define IDS_MAX    49152 /* tokens of a set that a descent remembers: 192 KB of the thread's stack */
#define LESS_MAX   16384 /* tokens of a class that a set does without: 64 KB more */
#define ROUNDS_MAX 4096  /* tokens of a set by rounds */

static const uint32_t SPANS[] = {4, 16, 64, 0}; /* rounds that tokens may add; 0: the exact rounds are in the key */

enum by_rounds { BY_NONE, BY_LEFT, BY_DONE }; /* a set for every number of rounds: by those left, by those done */

struct key {
    uint64_t lo, hi;
};

struct token_set {
    struct key key;
    bool more; /* look at one more frame; nothing else is here */
    bool dense;
    uint8_t by;         /* enum by_rounds: behind the ids stands how many each needs, and they are in that order */
    uint8_t class_n;    /* number + 1 of a class whose tokens are in it too, less `n_less` of them; or 0 */
    uint16_t deeper;    /* frames it needs above its own */
    uint32_t n, n_less; /* ids; with dense: counted up to 2 */
    uint32_t ids[];     /* n, then n_less; or, with dense, the words of a mask */
};
_Static_assert(offsetof(struct token_set, ids) % sizeof(uint64_t) == 0, "words of a mask lie there");

struct mask_cache {
    pthread_mutex_t lock;
    atomic_size_t used;
    uint32_t n, size; /* of the table; a power of two */
    _Atomic(struct token_set *) *table;
    char *block;
    size_t block_bytes;
};

enum err mask_cache_new(const struct automaton *a, struct mask_cache **out, struct error *e)
{
    struct mask_cache *c = mem_zalloc(sizeof *c);
    if (c == NULL)
        return FAIL(e, ERR_NOMEM, "out of memory for the masks of a grammar");
    c->size = 256;
    while (c->size < a->n_states * 4 && c->size < GRAMMAR_MASKS_MAX * 2)
        c->size *= 2;
    c->block_bytes = MIN((size_t)(1 << 20) + (size_t)a->n_states * 512, (size_t)GRAMMAR_MASK_BYTES_MAX);
    c->table = mem_array(c->size, sizeof *c->table);
    c->block = mem_alloc(c->block_bytes);
    (void)pthread_mutex_init(&c->lock, NULL);
    if (c->table == NULL || c->block == NULL) {
        mask_cache_free(c);
        return FAIL(e, ERR_NOMEM, "out of memory for the masks of a grammar");
    }
    *out = c;
    return OK;
}

void mask_cache_free(struct mask_cache *c)
{
    if (c == NULL)
        return;
    (void)pthread_mutex_destroy(&c->lock);
    mem_free(c->table);
    mem_free(c->block);
    mem_free(c);
}

size_t mask_cache_bytes(const struct mask_cache *c)
{
    return sizeof *c + c->size * sizeof *c->table + atomic_load_explicit(&c->used, memory_order_relaxed);
}

/* ---- keys ---- */

static struct key key_with(struct key k, uint64_t x)
{
    k.lo = (k.lo ^ x) * UINT64_C(0x9E3779B97F4A7C15);
    k.lo ^= k.lo >> 29;
    k.hi = (k.hi + x + 1) * UINT64_C(0xC2B2AE3D27D4EB4F);
    k.hi ^= k.hi >> 32;
    return k;
}

/* What of a frame the set depends on, when no token adds more than `span` rounds. */
static struct key key_frame(struct key k, const struct automaton *a, const struct stack_frame *f, uint32_t span)
{
    k = key_with(k, (uint64_t)f->to << 16 | f->loop);
    if (f->loop == 0)
        return k;
    const struct auto_loop *l = &a->loops[f->loop];
    const uint64_t reach = (uint64_t)f->rounds + span;
    if (span != 0 && f->rounds + 1 >= l->min && (l->max == EXPR_UNBOUNDED || reach < l->max))
        return key_with(k, UINT64_C(1) << 32);
    if (span != 0 && reach < l->min)
        return key_with(k, UINT64_C(2) << 32);
    return key_with(k, f->rounds);
}

/* Of a loop's frame whose rounds do not matter. */
static struct key key_loop(struct key k, const struct stack_frame *f)
{
    return key_with(k, (uint64_t)f->to << 16 | f->loop);
}

static struct key key_state(uint32_t state, uint32_t span_number)
{
    return key_with((struct key){0x51ED270B, 0x2545F491}, (uint64_t)span_number << 32 | state);
}

static struct key key_rounds(uint32_t state, enum by_rounds by)
{
    return key_state(state, (uint32_t)(COUNT_OF(SPANS) + by));
}

static const struct token_set *cache_get(const struct mask_cache *c, struct key k)
{
    for (uint64_t h = k.lo;; h++) {
        const struct token_set *s = atomic_load_explicit(&c->table[h & (c->size - 1)], memory_order_acquire);
        if (s == NULL || (s->key.lo == k.lo && s->key.hi == k.hi))
            return s;
    }
}

/* With the lock held. */
static struct token_set *block_take(struct mask_cache *c, size_t bytes)
{
    const size_t used = atomic_load_explicit(&c->used, memory_order_relaxed), rounded = (bytes + 15) & ~(size_t)15;
    if (rounded > c->block_bytes - used)
        return NULL;
    atomic_store_explicit(&c->used, used + rounded, memory_order_relaxed);
    return (struct token_set *)(c->block + used);
}

/* With the lock held; what is there already stays. */
static void cache_put(struct mask_cache *c, struct token_set *s)
{
    uint64_t h = s->key.lo;
    for (;; h++) {
        const struct token_set *t = atomic_load_explicit(&c->table[h & (c->size - 1)], memory_order_relaxed);
        if (t == NULL)
            break;
        if (t->key.lo == s->key.lo && t->key.hi == s->key.hi)
            return;
    }
    c->n++;
    atomic_store_explicit(&c->table[h & (c->size - 1)], s, memory_order_release);
}

/* ---- the walk through the trie ---- */

/* One level of it: the readings behind its bytes. */
struct level {
    uint32_t first, n; /* in `pool` */
    uint32_t n_frames; /* in use at this level */
};

struct descent {
    const struct grammar *g;
    const struct grammar_vocab *v;
    struct stepper t;
    uint64_t *mask; /* gets every token */
    uint32_t n_ids; /* found; the first IDS_MAX are in ids */
    uint64_t nodes; /* looked at */
    uint32_t base;  /* frames of the reading itself, [0] with them */
    uint32_t n_less;
    uint32_t ids[IDS_MAX], less[LESS_MAX];
    struct stack_frame frames[GRAMMAR_SCRATCH_FRAMES];
    struct reading pool[GRAMMAR_SCRATCH_READINGS];
    struct level levels[GRAMMAR_TOKEN_DEPTH_MAX + 1];
};

static void emit(struct descent *d, uint32_t token)
{
    for (; token != NONE32; token = d->v->same_as[token]) {
        if (d->mask != NULL)
            d->mask[token / 64] |= UINT64_C(1) << (token % 64);
        if (d->n_ids < IDS_MAX)
            d->ids[d->n_ids] = token;
        d->n_ids++;
    }
}

/* The readings behind one more byte. The usual case, one reading that stays in states without calls and ends, is done
 * here; false: there are none, and the text is not complete either. */
static bool level_step(struct descent *d, const struct level *up, struct level *here, uint8_t byte)
{
    const struct automaton *a = d->t.a;
    here->first = up->first + up->n;
    here->n = 0;
    here->n_frames = d->t.n_frames = up->n_frames;
    if (here->first + GRAMMAR_READINGS_MAX > GRAMMAR_SCRATCH_READINGS ||
        up->n_frames + GRAMMAR_MET_MAX > GRAMMAR_SCRATCH_FRAMES)
        return false; /* no room to look further: not allowed, which is always safe */
    if (up->n == 1) {
        const struct reading r = d->pool[up->first];
        const uint32_t to = automaton_next(a, &a->states[r.state], byte);
        if (to == NONE32)
            return false;
        const struct auto_state *s = &a->states[to];
        const uint32_t deepest = d->frames[r.frame].depth + s->need;
        if ((s->flags & (AUTO_ACCEPT | AUTO_CALLS)) == 0 && deepest <= GRAMMAR_DEPTH_MAX) {
            d->t.deepest = MAX(d->t.deepest, deepest);
            d->pool[here->first] = (struct reading){to, r.frame};
            here->n = 1;
            return true;
        }
    }
    here->n = stepper_byte(&d->t, d->pool + up->first, up->n, byte, d->pool + here->first);
    here->n_frames = d->t.n_frames;
    return here->n > 0 || d->t.complete;
}

/* Does a reading go on for ever with what all tokens below this node of the vocabulary's trie are made of? */
static bool is_pure(const struct descent *d, const struct level *here, uint32_t node)
{
    for (uint32_t i = 0; i < here->n; i++) {
        const uint8_t n = d->g->class_of[d->pool[here->first + i].state];
        if (n != 0 && (n & CLASS_COUNTED) == 0 && (d->g->classes[n - 1]->pure[node / 64] >> (node % 64) & 1) != 0)
            return true;
    }
    return false;
}

/* One node of the trie, and all below it when that needs no looking: the next to look at. */
static uint32_t descend_node(struct descent *d, const struct trie *trie, uint32_t i)
{
    const struct trie_node *node = &trie->nodes[i];
    d->nodes++;
    if (node->depth > GRAMMAR_TOKEN_DEPTH_MAX)
        return node->end;
    struct level *here = &d->levels[node->depth];
    if (!level_step(d, &d->levels[node->depth - 1], here, node->byte))
        return node->end;
    if (node->token != NONE32)
        emit(d, node->token);
    if (here->n == 0 || node->end == i + 1)
        return node->end;
    if (trie != &d->v->trie || !is_pure(d, here, i))
        return i + 1;
    for (uint32_t k = i + 1; k < node->end; k++)
        if (trie->nodes[k].token != NONE32)
            emit(d, trie->nodes[k].token);
    d->nodes += (node->end - i) / 8;
    return node->end;
}

static bool has_byte(const uint64_t *set, uint32_t byte)
{
    return (set[byte / 64] >> (byte % 64) & 1) != 0;
}

static void add_bytes(uint64_t *bytes, uint32_t lo, uint32_t hi)
{
    for (uint32_t w = lo / 64; w <= hi / 64; w++) {
        const uint32_t from = w == lo / 64 ? lo % 64 : 0, to = w == hi / 64 ? hi % 64 : 63;
        bytes[w] |= UINT64_MAX >> (63 - (to - from)) << from;
    }
}

static void add_readable(const struct automaton *a, uint32_t state, uint64_t *bytes)
{
    const struct auto_state *s = &a->states[state];
    for (uint32_t i = 0; i < s->n_edges; i++)
        add_bytes(bytes, a->edges[s->edge_at + i].lo, a->edges[s->edge_at + i].hi);
}

/* All tokens at and below a child of the root that the reading of level 0 allows. */
static void descend_below(struct descent *d, const struct trie *trie, uint32_t child)
{
    const uint32_t end = trie->nodes[child].end;
    uint32_t i = descend_node(d, trie, child);
    if (trie->second == NULL) {
        while (i < end)
            i = descend_node(d, trie, i);
        return;
    }
    uint64_t bytes[4] = {0};
    for (uint32_t k = 0; k < d->levels[1].n && i < end; k++)
        add_readable(d->t.a, d->pool[d->levels[1].first + k].state, bytes);
    for (uint32_t w = 0; w < 4; w++)
        for (uint64_t left = bytes[w]; left != 0; left &= left - 1) {
            const uint32_t at = trie->second[trie->nodes[child].byte][w * 64 + (uint32_t)__builtin_ctzll(left)];
            for (i = at; at != 0 && i < trie->nodes[at].end;)
                i = descend_node(d, trie, i);
        }
}

/* All tokens of the trie that the reading of level 0 allows; first bytes of `skip` are left out. */
static void descend(struct descent *d, const struct trie *trie, const uint64_t *skip)
{
    const struct auto_state *s = &d->t.a->states[d->pool[0].state];
    for (uint32_t i = 0; i < s->n_edges; i++) {
        const struct dfa_edge *e = &d->t.a->edges[s->edge_at + i];
        for (uint32_t byte = e->lo; byte <= e->hi; byte++)
            if (trie->first[byte] != 0 && (skip == NULL || !has_byte(skip, byte)))
                descend_below(d, trie, trie->first[byte]);
    }
}

/* ---- classes that nearly fit ---- */

/* The state that most bytes lead to, when it reads a class for ever; NONE32: there is none. */
static uint32_t nearly(const struct grammar *g, uint32_t state)
{
    const struct auto_state *s = &g->a.states[state];
    const struct dfa_edge *e = g->a.edges + s->edge_at;
    for (uint32_t i = 0; i < s->n_edges; i++) {
        const uint8_t n = g->class_of[e[i].to];
        uint32_t bytes = 0, all = 0;
        for (uint32_t k = 0; k < s->n_edges; k++) {
            bytes += e[k].to == e[i].to ? e[k].hi - e[k].lo + 1u : 0;
            all += e[k].hi - e[k].lo + 1u;
        }
        if (n != 0 && (n & CLASS_COUNTED) == 0 && bytes * 2 >= all && bytes >= 24)
            return e[i].to;
    }
    return NONE32;
}

static bool lessen(
    struct descent *d, const struct token_class *c, const struct trie_node *from, const struct trie_node *to)
{
    for (; from < to; from++) {
        d->nodes++;
        for (uint32_t t = from->token; t != NONE32; t = d->v->same_as[t]) {
            if ((c->all[t / 64] >> (t % 64) & 1) == 0)
                continue;
            if (d->n_less == LESS_MAX)
                return false;
            d->less[d->n_less++] = t;
        }
    }
    return true;
}

/* Which tokens of the class at and below a child of the root fail here. models[0] is the state that reads the class;
 * where the reading has come to the same state, all below is as it is there. False: too many fail for this to pay. */
static bool nearly_below(struct descent *d, const struct token_class *c, uint32_t *models, uint32_t child)
{
    const struct automaton *a = d->t.a;
    const struct trie *trie = &d->v->trie;
    const uint32_t end = trie->nodes[child].end;
    for (uint32_t i = child; i < end; d->nodes++) {
        const struct trie_node *node = &trie->nodes[i];
        const bool in_class = has_byte(c->starts, node->byte) || (node->depth > 1 && node->byte >= 0x80);
        if (node->depth > GRAMMAR_TOKEN_DEPTH_MAX)
            return false;
        const uint32_t m = in_class ? automaton_next(a, &a->states[models[node->depth - 1]], node->byte) : NONE32;
        if (m == NONE32) {
            i = node->end;
            continue;
        }
        models[node->depth] = m;
        struct level *here = &d->levels[node->depth];
        const bool alive = level_step(d, &d->levels[node->depth - 1], here, node->byte);
        if (here->n == 0) {
            if (!lessen(d, c, node + alive, trie->nodes + node->end))
                return false;
            i = node->end;
        } else {
            const struct reading r = d->pool[here->first];
            i = here->n == 1 && r.state == m && r.frame == d->base - 1 ? node->end : i + 1;
        }
    }
    return true;
}

static bool descend_nearly(struct descent *d, const struct token_class *c, uint32_t model)
{
    uint32_t models[GRAMMAR_TOKEN_DEPTH_MAX + 1];
    models[0] = model;
    for (uint32_t byte = 0; byte < 256; byte++)
        if (d->v->trie.first[byte] != 0 && has_byte(c->starts, byte) &&
            !nearly_below(d, c, models, d->v->trie.first[byte]))
            return false;
    return true;
}

/* ---- sets ---- */

/* A mask being written: the first whole one is copied, the others are added. */
struct sink {
    const struct grammar_vocab *v;
    uint64_t *mask;
    bool blank; /* nothing was written yet, not even zeros */
    uint32_t n; /* tokens, perhaps some twice; at most 2 */
};

static void sink_zero(struct sink *s)
{
    if (s->blank)
        memset(s->mask, 0, s->v->words * sizeof *s->mask);
    s->blank = false;
}

static void sink_words(struct sink *s, const uint64_t *words)
{
    if (s->blank)
        memcpy(s->mask, words, s->v->words * sizeof *words);
    for (uint32_t i = 0; i < s->v->words && !s->blank; i++)
        s->mask[i] |= words[i];
    s->blank = false;
}

/* Is no token of the class longer than `left` characters? */
static bool class_fits(const struct token_class *c, uint64_t left)
{
    return c->n_longer == 0 ? left >= CLASS_SHORT : left >= c->lengths[0];
}

/* The tokens of a class with at most `left` characters. */
static void sink_class(struct sink *s, const struct token_class *c, uint64_t left)
{
    s->n = 2; /* a class without two tokens would be none */
    if (class_fits(c, left)) {
        sink_words(s, c->all);
        return;
    }
    sink_words(s, c->within[MIN(left, CLASS_SHORT - 1)]);
    for (uint32_t i = c->n_longer; i-- > 0 && c->lengths[i] <= left;)
        s->mask[c->longer[i] / 64] |= UINT64_C(1) << (c->longer[i] % 64);
}

/* A class less some of its tokens, which stay as they were. */
static void sink_nearly(struct sink *s, const struct token_class *c, const uint32_t *less, uint32_t n)
{
    uint64_t had[LESS_MAX / 64] = {0};
    for (uint32_t i = 0; i < n && !s->blank; i++)
        had[i / 64] |= (s->mask[less[i] / 64] >> (less[i] % 64) & 1) << (i % 64);
    sink_class(s, c, UINT64_MAX);
    for (uint32_t i = 0; i < n; i++)
        if ((had[i / 64] >> (i % 64) & 1) == 0)
            s->mask[less[i] / 64] &= ~(UINT64_C(1) << (less[i] % 64));
}

static void sink_set(struct sink *s, const struct grammar *g, const struct token_set *set)
{
    if (set->class_n != 0)
        sink_nearly(s, g->classes[set->class_n - 1], set->ids + set->n, set->n_less);
    s->n = MIN(s->n + set->n, 2);
    if (set->dense) {
        sink_words(s, (const uint64_t *)(const void *)set->ids);
        return;
    }
    sink_zero(s);
    for (uint32_t i = 0; i < set->n; i++)
        s->mask[set->ids[i] / 64] |= UINT64_C(1) << (set->ids[i] % 64);
}

/* What a reading starts from: a class, and how many of its characters may follow. */
static const struct token_class *class_of(
    const struct grammar *g, const struct stack_frame *frames, struct reading r, uint64_t *left)
{
    const uint8_t n = g->class_of[r.state];
    *left = UINT64_MAX;
    if ((n & CLASS_COUNTED) != 0) {
        const struct stack_frame *f = &frames[r.frame];
        const uint32_t max = g->a.loops[f->loop].max;
        *left = max == EXPR_UNBOUNDED ? UINT64_MAX : max - f->rounds;
    }
    return n == 0 ? NULL : g->classes[(n & ~CLASS_COUNTED) - 1];
}

static struct key key_next(
    struct key k, const struct automaton *a, const struct stack_frame *frames, uint32_t at, uint32_t span)
{
    return at == 0 ? key_with(k, UINT64_MAX) : key_frame(k, a, &frames[at], span);
}

/* The kept set of a reading, or NULL. */
static const struct token_set *set_find(const struct grammar *g, const struct stack_frame *frames, struct reading r)
{
    for (uint32_t i = 0; i < COUNT_OF(SPANS); i++) {
        struct key k = key_state(r.state, i);
        for (uint32_t at = r.frame;; at = frames[at].below) {
            const struct token_set *s = cache_get(g->masks, k);
            if (s == NULL)
                break;
            if (!s->more)
                return frames[r.frame].depth + s->deeper <= GRAMMAR_DEPTH_MAX ? s : NULL;
            k = key_next(k, &g->a, frames, at, SPANS[i]);
        }
    }
    return NULL;
}

static void descent_init(struct descent *d, const struct grammar *g, const struct stack_frame *frames, struct reading r)
{
    d->g = g;
    d->v = g->vocab;
    d->n_ids = d->n_less = 0;
    d->nodes = 0;
    d->base = frames[r.frame].depth + 1u;
    for (uint32_t at = r.frame, k = d->base; k-- > 0; at = frames[at].below) { /* a frame's place is its depth */
        d->frames[k] = frames[at];
        d->frames[k].below = (uint16_t)(k > 0 ? k - 1 : 0);
        d->frames[k].of_base = 1;
    }
    stepper_init(&d->t, &g->a, d->frames, d->base, GRAMMAR_SCRATCH_FRAMES);
    d->t.deepest = d->t.top = d->base - 1;
    d->pool[0] = (struct reading){r.state, d->base - 1};
    d->levels[0] = (struct level){0, 1, d->base};
}

static void descend_all(struct descent *d, const struct token_class *c)
{
    if (c != NULL)
        descend(d, &c->rest, NULL);
    descend(d, &d->v->trie, c != NULL ? c->starts : NULL);
}

/* Room for a set in the cache; NULL when it is full. */
static struct token_set *set_take(struct mask_cache *c, size_t bytes)
{
    (void)pthread_mutex_lock(&c->lock);
    struct token_set *s = block_take(c, sizeof *s + bytes);
    (void)pthread_mutex_unlock(&c->lock);
    return s;
}

/* Publish a set under its key, and the notes that lead to it. */
static void set_publish(struct grammar *g, const struct descent *d, struct token_set *set, uint32_t state)
{
    struct mask_cache *c = g->masks;
    const uint32_t lowest = MIN(d->t.lowest, d->base), looked = d->base - lowest;
    uint32_t span = 0;
    while (SPANS[span] != 0 && SPANS[span] < MAX(d->t.on_top, d->t.below) && set->by == BY_NONE)
        span++;
    struct key k = set->by != BY_NONE ? key_rounds(state, (enum by_rounds)set->by) : key_state(state, span);
    (void)pthread_mutex_lock(&c->lock);
    for (uint32_t i = 0; i <= looked && (c->n + looked + 1) * 2 < c->size; i++) {
        struct token_set *s = i == looked ? set : block_take(c, sizeof *s);
        if (s == NULL)
            break;
        if (i < looked)
            *s = (struct token_set){.more = true};
        s->key = k;
        cache_put(c, s);
        if (i == 0 && set->by != BY_NONE)
            k = key_loop(k, &d->frames[d->base - 1]);
        else if (i < looked)
            k = key_next(k, &g->a, d->frames, d->base - 1 - i, SPANS[span]);
    }
    (void)pthread_mutex_unlock(&c->lock);
}

/* Keep what a descent found, as a list or as a mask, whichever is smaller. */
static void set_keep(struct grammar *g, struct descent *d, const struct token_class *c, uint8_t near, uint32_t state)
{
    const size_t words = d->v->words * sizeof(uint64_t);
    const bool known = d->n_ids <= IDS_MAX, dense = !known || (d->n_ids + d->n_less) * sizeof(uint32_t) > words;
    struct token_set *s = set_take(g->masks, dense ? words : (d->n_ids + d->n_less) * sizeof(uint32_t));
    if (s == NULL)
        return;
    *s = (struct token_set){.dense = dense,
        .class_n = dense ? 0 : near,
        .deeper = (uint16_t)(d->t.deepest - (d->base - 1)),
        .n = dense ? 2 : d->n_ids,
        .n_less = dense ? 0 : d->n_less};
    if (dense) { /* into a mask of its own; once more, when there were too many to remember */
        d->mask = (uint64_t *)(void *)s->ids;
        memset(d->mask, 0, words);
        if (near != 0)
            memcpy(d->mask, c->all, words);
        for (uint32_t i = 0; i < d->n_less; i++)
            d->mask[d->less[i] / 64] &= ~(UINT64_C(1) << (d->less[i] % 64));
        for (uint32_t i = 0; i < d->n_ids && known; i++)
            d->mask[d->ids[i] / 64] |= UINT64_C(1) << (d->ids[i] % 64);
        d->t.n_frames = d->base;
        if (!known)
            descend_all(d, c);
    } else {
        memcpy(s->ids, d->ids, d->n_ids * sizeof *s->ids);
        memcpy(s->ids + d->n_ids, d->less, d->n_less * sizeof *s->ids);
    }
    set_publish(g, d, s, state);
}

/* ---- sets by rounds ---- */

/* Is the loop on top past its minimum, so that only the maximum decides about rounds? Or before it, and the maximum too
 * far away for any token? */
static enum by_rounds by_rounds(const struct grammar *g, const struct stack_frame *frames, struct reading r)
{
    if ((g->class_of[r.state] & CLASS_COUNTED) == 0)
        return BY_NONE;
    const struct stack_frame *f = &frames[r.frame];
    const struct auto_loop *l = &g->a.loops[f->loop];
    if (f->rounds + 1 >= l->min)
        return l->max != EXPR_UNBOUNDED ? BY_LEFT : BY_NONE;
    return l->max == EXPR_UNBOUNDED || l->max - l->min > g->vocab->longest ? BY_DONE : BY_NONE;
}

static const struct token_set *rounds_find(
    const struct grammar *g, const struct stack_frame *frames, struct reading r, enum by_rounds by)
{
    struct key k = key_rounds(r.state, by);
    for (uint32_t at = r.frame;; at = frames[at].below) {
        const struct token_set *s = cache_get(g->masks, k);
        if (s == NULL || !s->more)
            return s != NULL && frames[r.frame].depth + s->deeper <= GRAMMAR_DEPTH_MAX ? s : NULL;
        k = at == r.frame ? key_loop(k, &frames[at]) : key_next(k, &g->a, frames, at, SPANS[0]);
    }
}

/* Is the token allowed behind so many rounds? */
static bool is_allowed_behind(struct descent *d, uint32_t id, uint32_t rounds)
{
    const struct str t = vocab_token(d->v, id);
    d->frames[d->base - 1].rounds = rounds;
    bool alive = t.n <= GRAMMAR_TOKEN_DEPTH_MAX;
    for (size_t i = 0; i < t.n && alive; i++) {
        alive = level_step(d, &d->levels[i], &d->levels[i + 1], (uint8_t)t.p[i]) &&
                (i + 1 == t.n || d->levels[i + 1].n > 0);
    }
    return alive;
}

/* Is it when so many are left? */
static bool is_allowed(struct descent *d, uint32_t id, uint32_t left)
{
    return is_allowed_behind(d, id, d->t.a->loops[d->frames[d->base - 1].loop].max - left);
}

/* How many rounds must have been before a token that is allowed behind `most`, and one more, so that it is not 0. With
 * more rounds never less is allowed, since the maximum is far away. */
static uint32_t rounds_before(struct descent *d, uint32_t id, uint32_t most)
{
    uint32_t lo = 0, hi = most;
    if (is_allowed_behind(d, id, 0))
        return 1;
    while (lo + 1 < hi) { /* not behind lo, but behind hi */
        const uint32_t mid = lo + (hi - lo) / 2;
        if (is_allowed_behind(d, id, mid))
            hi = mid;
        else
            lo = mid;
    }
    return hi + 1;
}

/* How many rounds a token needs that is allowed with `most`; 0: that is not what a count says. The rounds that it ends
 * are enough, or one more that it begins; both are tried, since with more rounds left never less is allowed. */
static uint32_t rounds_needed(struct descent *d, uint32_t id, uint32_t most)
{
    d->t.on_top = 0;
    if (!is_allowed(d, id, most))
        return 0;
    const uint32_t ended = MIN(MAX(d->t.on_top, 1), most);
    if (is_allowed(d, id, ended))
        return ended == 1 || !is_allowed(d, id, ended - 1) ? ended : 0;
    return ended < most && is_allowed(d, id, ended + 1) ? ended + 1 : 0;
}

/* Ids in the order of what they need: needs are small numbers, so they are counted. */
static void rounds_sort(const struct descent *d, const uint32_t *needs, struct token_set *s)
{
    uint32_t n = 0;
    for (uint32_t need = 1, next; n < d->n_ids; need = next) {
        next = UINT32_MAX;
        for (uint32_t i = 0; i < d->n_ids; i++) {
            if (needs[i] == need) {
                s->ids[n] = d->ids[i];
                s->ids[d->n_ids + n++] = need;
            }
            next = needs[i] > need ? MIN(next, needs[i]) : next;
        }
    }
}

/* Make and keep the set for every number of rounds; NULL: there is none, or no room. */
static const struct token_set *rounds_make(struct grammar *g, const struct stack_frame *frames, struct reading r,
    enum by_rounds by, const struct token_class *c, uint64_t *nodes)
{
    struct descent d;
    uint32_t needs[ROUNDS_MAX];
    descent_init(&d, g, frames, r);
    const struct auto_loop *l = &g->a.loops[d.frames[d.base - 1].loop];
    const uint32_t most = l->max - (l->min - 1);
    d.frames[d.base - 1].rounds = l->min - 1;
    d.mask = NULL;
    descend_all(&d, c);
    *nodes += d.nodes;
    if (d.n_ids > ROUNDS_MAX || d.t.closed || d.t.lowest > d.base - 1 || d.t.below > SPANS[0])
        return NULL;
    for (uint32_t i = 0; i < d.n_ids; i++) {
        needs[i] = by == BY_LEFT ? rounds_needed(&d, d.ids[i], most) : rounds_before(&d, d.ids[i], l->min - 1);
        if (needs[i] == 0)
            return NULL;
    }
    *nodes += d.n_ids * 8;
    struct token_set *s = set_take(g->masks, 2 * d.n_ids * sizeof(uint32_t));
    if (s == NULL)
        return NULL;
    *s = (struct token_set){.by = (uint8_t)by, .deeper = (uint16_t)(d.t.deepest - (d.base - 1)), .n = d.n_ids};
    rounds_sort(&d, needs, s);
    set_publish(g, &d, s, r.state);
    return s;
}

static void sink_rounds(struct sink *s, const struct token_set *set, uint64_t rounds)
{
    const uint32_t *needs = set->ids + set->n;
    sink_zero(s);
    for (uint32_t i = 0; i < set->n && needs[i] <= rounds; i++)
        s->mask[set->ids[i] / 64] |= UINT64_C(1) << (set->ids[i] % 64);
}

/* What the needs of a set by rounds are compared with. */
static uint64_t rounds_of(enum by_rounds by, uint64_t left, const struct stack_frame *top)
{
    return by == BY_LEFT ? left : top->rounds + UINT64_C(1);
}

static uint64_t sink_reading(struct sink *s, struct grammar *g, const struct stack_frame *frames, struct reading r)
{
    uint64_t left;
    const struct token_class *c = class_of(g, frames, r, &left);
    if (c != NULL)
        sink_class(s, c, left);
    uint64_t nodes = 0;
    const enum by_rounds by = by_rounds(g, frames, r);
    const struct token_set *some = by != BY_NONE ? rounds_find(g, frames, r, by) : NULL;
    const struct token_set *set = some == NULL ? set_find(g, frames, r) : NULL;
    if (set != NULL) {
        sink_set(s, g, set);
        return nodes;
    }
    if (some == NULL && by != BY_NONE)
        some = rounds_make(g, frames, r, by, c, &nodes);
    if (some != NULL) {
        sink_rounds(s, some, rounds_of(by, left, &frames[r.frame]));
        return nodes;
    }
    struct descent d;
    uint8_t near = 0;
    descent_init(&d, g, frames, r);
    const uint32_t model = c == NULL ? nearly(g, r.state) : NONE32;
    if (model != NONE32) {
        const struct token_class *n = g->classes[g->class_of[model] - 1];
        if (descend_nearly(&d, n, model)) {
            near = g->class_of[model];
            sink_nearly(s, n, d.less, d.n_less);
            c = n;
        }
        d.n_less = near != 0 ? d.n_less : 0;
    }
    sink_zero(s);
    d.mask = s->mask;
    descend_all(&d, c);
    s->n = MIN(s->n + d.n_ids, 2);
    if (!d.t.closed)
        set_keep(g, &d, c, near, r.state);
    return nodes + d.nodes;
}

uint64_t mask_warm(struct grammar *g, const struct stack_frame *frames, struct reading r, uint64_t *scratch)
{
    struct sink s = {g->vocab, scratch, true, 0};
    return sink_reading(&s, g, frames, r);
}

static uint32_t count_to_two(const uint64_t *mask, uint32_t words)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < words && n < 2; i++)
        n += mask[i] == 0 ? 0 : (mask[i] & (mask[i] - 1)) == 0 ? 1 : 2;
    return MIN(n, 2);
}

uint32_t grammar_mask(const struct grammar_walk *w, const uint32_t *ends, uint32_t n_ends, uint64_t *mask)
{
    const struct grammar_vocab *v = w->g->vocab;
    struct sink s = {v, mask, true, 0};
    for (uint32_t i = 0; i < w->n_readings; i++)
        (void)sink_reading(&s, w->g, w->frames, w->readings[i]);
    sink_zero(&s);
    bool changed = w->n_readings > 1;
    for (uint32_t i = 0; i < n_ends; i++) {
        if (ends[i] >= v->n)
            continue;
        const uint64_t bit = UINT64_C(1) << (ends[i] % 64);
        const struct str t = vocab_token(v, ends[i]);
        const bool had = (mask[ends[i] / 64] & bit) != 0;
        if (w->complete)
            mask[ends[i] / 64] |= bit;
        else if (t.n > 0 && (uint8_t)t.p[0] != GRAMMAR_CONTROL)
            mask[ends[i] / 64] &= ~bit; /* text that would end the answer */
        changed |= had != ((mask[ends[i] / 64] & bit) != 0);
    }
    return changed ? count_to_two(mask, v->words) : s.n;
}

/* ---- keys of whole masks ---- */

#define PART_WORDS 4u

/* Where sink_reading would take the tokens of a reading from: a class up to a length, a set up to a number of rounds.
 * Lengths and rounds beyond which nothing changes are one. */
static bool reading_key(const struct grammar *g, const struct stack_frame *frames, struct reading r, uint64_t *part)
{
    uint64_t left;
    const struct token_class *c = class_of(g, frames, r, &left);
    const enum by_rounds by = by_rounds(g, frames, r);
    const struct token_set *set = by != BY_NONE ? rounds_find(g, frames, r, by) : NULL;
    part[0] = (uintptr_t)c;
    part[1] = c == NULL || class_fits(c, left) ? UINT64_MAX : left;
    part[3] = 0;
    if (set != NULL && set->n > 0)
        part[3] = MIN(rounds_of(by, left, &frames[r.frame]), (uint64_t)set->ids[2 * set->n - 1]);
    set = set != NULL ? set : set_find(g, frames, r);
    part[2] = (uintptr_t)set;
    return set != NULL;
}

bool grammar_mask_key(const struct grammar_walk *w, struct grammar_key *out)
{
    out->n = 2 + w->n_readings * PART_WORDS;
    if (out->n > GRAMMAR_KEY_WORDS)
        return false;
    out->words[0] = (uintptr_t)w->g;
    out->words[1] = w->complete;
    for (uint32_t i = 0; i < w->n_readings; i++)
        if (!reading_key(w->g, w->frames, w->readings[i], out->words + 2 + i * PART_WORDS))
            return false;
    return true;
}

/* Choosing on the device, emulated: tokens, log-probabilities and alternatives against sample/ on the same logits. */
#include "testing_cuda.h"

#include "cuda/sample.cu"
#include "testing_reference.h"

#define VOCAB      6001u
#define MASK_WORDS ((VOCAB + 63) / 64)
#define ROWS       24u

static struct dev device;

void *cuda_room(struct dev *, void **p, size_t *have, size_t want)
{
    if (*have < want) {
        mem_free(*p);
        *p = mem_zalloc(want);
        *have = want;
    }
    return *p;
}

void cuda_write(struct dev *, void *to, const void *from, size_t bytes)
{
    std::memcpy(to, from, bytes);
}

void cuda_write_aside(struct dev *, void *to, const void *from, size_t bytes)
{
    std::memcpy(to, from, bytes);
}

void cuda_aside_read(struct dev *)
{
}

/* Peaked rows, flat rows (whose cuts fall far down), ties, a row with NaN, one of nothing else, one with infinity. */
static std::vector<float> make_logits()
{
    const float width[] = {0.3f, 2.0f, 6.0f};
    std::vector<float> x((size_t)ROWS * VOCAB);
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t i = 0; i < VOCAB; i++) {
            const float v = random_normal() * width[r % 3];
            x[(size_t)r * VOCAB + i] = r % 8 == 1 ? std::round(v) : v;
        }
    std::fill(x.begin() + 2 * VOCAB + 5, x.begin() + 2 * VOCAB + 3000, NAN);
    std::fill(x.begin() + 3 * VOCAB, x.begin() + 4 * VOCAB, NAN);
    x[4 * VOCAB + 77] = INFINITY;
    return x;
}

static void add_changes(struct sample_ask &a, std::vector<uint32_t> &words, std::vector<uint64_t> &masks)
{
    const uint32_t banned[] = {3, VOCAB - 1, VOCAB + 5}, ids[] = {7, 9, 7};
    const float bias[] = {3.0f, -100.0f, 0.5f};
    a.mask = (uint32_t)(masks.size() / MASK_WORDS);
    for (uint32_t i = 0; i < MASK_WORDS; i++)
        masks.push_back(random_bits()() | random_bits()());
    a.banned_at = (uint32_t)words.size();
    a.n_banned = 3;
    words.insert(words.end(), banned, banned + 3);
    a.bias_at = (uint32_t)words.size();
    a.n_bias = 3;
    for (int i = 0; i < 3; i++) {
        words.push_back(ids[i]);
        words.push_back(__float_as_uint(bias[i]));
    }
    a.history_at = (uint32_t)words.size();
    a.n_history = 200;
    for (uint32_t i = 0; i < a.n_history; i++) {
        words.push_back(i * 29 + a.row);
        words.push_back((uint32_t)(random_bits()() % 4));
    }
    a.repetition = 1.3f;
    a.presence = 0.7f;
    a.frequency = 0.2f;
}

static std::vector<struct sample_ask> make_asks(
    const std::string &kind, std::vector<uint32_t> &words, std::vector<uint64_t> &masks)
{
    const uint32_t top_k[] = {1, 20, 50, 400, 1024, 1500, 5000, 7000};
    const float min_p[] = {0.3f, 0.05f, 1e-3f};
    std::vector<struct sample_ask> asks(ROWS);
    for (uint32_t r = 0; r < ROWS; r++) {
        struct sample_ask &a = asks[r];
        a = {};
        a.seed = random_bits()();
        a.index = random_bits()() % 1000;
        a.choice = r % 3;
        a.row = r;
        a.temperature = kind == "greedy" ? 0.0f : (float)(0.3 + 1.2 * random_unit());
        a.top_p = kind == "top-p" || kind == "all" ? (float)(0.1 + 0.89 * random_unit()) : 1.0f;
        a.top_k = kind == "top-k" || kind == "all" ? top_k[random_bits()() % 8] : 0;
        a.min_p = kind == "min-p" || kind == "all" ? min_p[random_bits()() % 3] : 0.0f;
        a.repetition = 1.0f;
        a.mask = SAMPLE_NO_MASK;
        a.want_logprob = r % 2 == 0;
        a.n_top = r % 2 == 0 ? r % 21 : 0;
        if (kind == "changed" || kind == "all" || kind == "greedy")
            add_changes(a, words, masks);
    }
    words.push_back(0);
    return asks;
}

static void compare(const std::string &kind, const struct sample_ask &a, const struct sample_got &got,
    const struct sample_got &want, const struct sample_top *top, const struct sample_top *want_top)
{
    const std::string row = kind + ", row " + std::to_string(a.row);
    expect(got.id == want.id, row + ": " + std::to_string(got.id) + " for " + std::to_string(want.id));
    if (want.id == UINT32_MAX || !a.want_logprob)
        return;
    const auto same = [](float x, float y) { return x == y || std::fabs(x - y) < 1e-5f; };
    expect(same(got.logprob, want.logprob) && got.n_top == want.n_top, row + ": log-probability");
    for (uint32_t i = 0; i < want.n_top; i++)
        expect(top[i].id == want_top[i].id && same(top[i].logprob, want_top[i].logprob), row + ": alternatives");
}

int main()
{
    const std::vector<float> logits = make_logits();
    uint32_t n_other = 0;
    device.out_max = ROWS;
    expect(cuda_sample_open(&device), "there is memory");
    uint32_t n = VOCAB; /* then one less, whose rows are read by fours */
    for (const char *kind : {"greedy", "greedy", "plain", "top-k", "top-p", "min-p", "changed", "all", "all"}) {
        std::vector<uint32_t> words, chosen(ROWS, 0);
        std::vector<uint64_t> masks;
        std::vector<struct sample_ask> asks = make_asks(kind, words, masks);
        std::vector<struct sample_got> got(ROWS), want(ROWS), other(ROWS);
        std::vector<struct sample_top> top(ROWS * SAMPLE_TOP_MAX), want_top(ROWS * SAMPLE_TOP_MAX);
        struct sample_args a = {logits.data(), n, ROWS, (uint32_t)words.size(), (uint32_t)(masks.size() / MASK_WORDS),
            asks.data(), words.data(), masks.data(), got.data(), top.data(), chosen.data()};
        cuda_sample(&device, &a);
        a.out = want.data();
        a.top = want_top.data();
        testing_reference(&a);
        for (uint32_t r = 0; r < ROWS; r++) {
            compare(kind, asks[r], got[r], want[r], &top[r * SAMPLE_TOP_MAX], &want_top[r * SAMPLE_TOP_MAX]);
            expect(chosen[r] == got[r].id, "the next step finds it");
            asks[r].seed++;
        }
        a.out = other.data();
        cuda_sample(&device, &a); /* the twin: other draws, other tokens */
        for (uint32_t r = 0; r < ROWS; r++)
            n_other += other[r].id != want[r].id;
        n = 2 * VOCAB - 1 - n;
    }
    expect(n_other > 2 * ROWS, "the twin is seen");
    mem_free(device.asks);
    mem_free(device.asks_host);
    mem_free(device.words);
    mem_free(device.masks);
    mem_free(device.adjusted);
    return verdict("sample");
}

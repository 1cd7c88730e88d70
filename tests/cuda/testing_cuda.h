/* What the tests of emulated kernels share: random numbers, distances, verdicts. */
#ifndef TESTING_CUDA_H
#define TESTING_CUDA_H

#include "cuda/kernels.cuh"

#include <cstdio>
#include <random>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

inline std::mt19937_64 &random_bits()
{
    static std::mt19937_64 bits(20);
    return bits;
}

inline float random_normal()
{
    return std::normal_distribution<float>(0.0f, 1.0f)(random_bits());
}

inline double random_unit()
{
    return std::uniform_real_distribution<double>(0.0, 1.0)(random_bits());
}

/* Memory aligned as a device's. */
template <class T> struct aligned {
    std::vector<unsigned char> bytes;
    T *p;
    size_t n;
    explicit aligned(size_t count, int fill = 0xff) : bytes(count * sizeof(T) + 64, (unsigned char)fill), n(count)
    {
        p = (T *)(((uintptr_t)bytes.data() + 63) / 64 * 64);
    }
    aligned(const aligned &other) : aligned(other.n)
    {
        std::memcpy(p, other.p, n * sizeof(T));
    }
    aligned &operator=(const aligned &) = delete;
};

/* Size of the difference over the size of what was wanted. */
template <class A, class B> double distance_of(const A *got, const B *want, size_t n)
{
    double far = 0.0, all = 0.0;
    for (size_t i = 0; i < n; i++) {
        far += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        all += (double)want[i] * (double)want[i];
    }
    return std::sqrt(far / all);
}

inline int &n_failures()
{
    static int n = 0;
    return n;
}

inline void expect(bool ok, const std::string &what)
{
    if (ok)
        return;
    n_failures()++;
    std::printf("FAILED: %s\n", what.c_str());
}

/* Whether a process of its own that runs it ends with a failure, whatever finds it. */
template <class Run> bool is_found(Run &&run)
{
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        expect(freopen("/dev/null", "w", stdout) != NULL && freopen("/dev/null", "w", stderr) != NULL, "silence");
        emulated_start_again();
        const int before = n_failures();
        std::_Exit(run() && n_failures() == before ? 0 : 1);
    }
    int status = 0;
    expect(child > 0 && waitpid(child, &status, 0) == child, "a process of its own");
    return status != 0;
}

/* A planted error; and that without one nothing is found. */
template <class Run> void expect_found(const std::string &what, Run &&run)
{
    expect(is_found(run), "is not found: " + what);
}
template <class Run> void expect_sound(Run &&run)
{
    expect(!is_found(run), "is found without an error");
}

inline int verdict(const char *name)
{
    std::printf("%s: %d failures\n", name, n_failures());
    return n_failures() == 0 ? 0 : 1;
}

#endif

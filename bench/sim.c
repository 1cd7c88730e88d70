/* A server's life by the thousand hours: runs histories of the simulator (tests/unit/engine/testing_sim.h) one seed
 * after the other, until enough simulated time has passed. Prints the seed of the first history in which a property
 * does not hold, and ends with 1; the same seed gives the same history again.
 *
 *     quern_sim [--hours H] [--seed FIRST] [--minutes M] [--wall SECONDS]
 *
 * --minutes is the length of one history, --wall ends the run early (and says so) when the machine is slow. */
#include "../tests/unit/engine/testing_sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct args {
    double hours, minutes, wall_s;
    uint64_t seed;
    bool shows;
};

static bool read_args(int argc, char **argv, struct args *a)
{
    *a = (struct args){.hours = 10, .minutes = 60, .wall_s = 1e9, .seed = 1};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--show") == 0) {
            a->shows = true;
            continue;
        }
        if (i + 1 == argc)
            return false;
        const char *const value = argv[++i];
        if (strcmp(argv[i - 1], "--hours") == 0)
            a->hours = strtod(value, NULL);
        else if (strcmp(argv[i - 1], "--minutes") == 0)
            a->minutes = strtod(value, NULL);
        else if (strcmp(argv[i - 1], "--wall") == 0)
            a->wall_s = strtod(value, NULL);
        else if (strcmp(argv[i - 1], "--seed") == 0)
            a->seed = strtoull(value, NULL, 10);
        else
            return false;
    }
    return a->hours > 0 && a->minutes > 0;
}

static void print_totals(const struct sim_totals *t, double wall_s)
{
    const struct {
        const char *name;
        uint64_t n;
    } counts[] = {
        {"histories", t->histories},
        {"requests", t->requests},
        {"choices", t->choices},
        {"ended by a stop id", t->ended[END_EOS]},
        {"by a stop string", t->ended[END_STOP]},
        {"by length", t->ended[END_LENGTH]},
        {"cancelled", t->ended[END_CANCELLED]},
        {"past their deadline", t->ended[END_DEADLINE]},
        {"expired unread", t->ended[END_EXPIRED]},
        {"busy", t->ended[END_BUSY]},
        {"aborted", t->ended[END_ABORTED]},
        {"failed", t->ended[END_FAILED]},
        {"refused: busy", t->refused_busy},
        {"refused: never fits", t->refused_limit},
        {"refused: engine failed", t->refused_failed},
        {"steps", t->steps},
        {"rows", t->rows},
        {"tokens compared with alone", t->compared_tokens},
        {"preempted by swap", t->preempted_swap},
        {"preempted by recompute", t->preempted_recompute},
        {"blocks copied on write", t->copied},
        {"prefix hits", t->hits},
        {"blocks evicted", t->evicted},
        {"of these to the host", t->kept},
        {"and back from it", t->restored},
        {"rows computed for the ended", t->surplus_rows},
        {"devices broken", t->breaks},
        {"guesses verified", t->guesses},
        {"guesses that held", t->guesses_held},
        {"intervals of fairness", t->fair_pairs},
    };
    for (size_t i = 0; i < COUNT_OF(counts); i++)
        printf("%-28s %llu\n", counts[i].name, (unsigned long long)counts[i].n);
    printf("%-28s %.3f of the bound\n", "longest wait", t->wait_worst);
    printf("%-28s %.3f of the bound\n", "largest unfairness", t->fair_worst);
    printf("%.1f simulated hours in %.1f s\n", t->seconds / 3600, wall_s);
}

int main(int argc, char **argv)
{
    struct args a;
    if (!read_args(argc, argv, &a)) {
        fprintf(stderr, "usage: quern_sim [--hours H] [--seed FIRST] [--minutes M] [--wall SECONDS] [--show]\n");
        return 2;
    }
    struct clock clock;
    clock_init(&clock);
    const uint64_t start = clock_now(&clock);
    struct sim_totals totals = {0};
    double wall_s = 0;
    for (uint64_t seed = a.seed; totals.seconds < a.hours * 3600; seed++) {
        const struct sim_config c = sim_draw(seed, a.minutes * 60);
        struct error e = {0};
        if (a.shows) {
            char what[512];
            printf("seed %llu: %s\n", (unsigned long long)seed, sim_describe(&c, what, sizeof what));
        }
        if (sim_run(&c, &totals, &e) != OK) {
            printf("%s\n", e.text);
            printf("again: quern_sim --seed %llu --minutes %g --hours 0.001\n", (unsigned long long)seed, a.minutes);
            return 1;
        }
        wall_s = (double)(clock_now(&clock) - start) / 1e9;
        if (wall_s > a.wall_s) {
            printf("stopped after %.0f s, as told\n", wall_s);
            break;
        }
    }
    print_totals(&totals, wall_s);
    return 0;
}

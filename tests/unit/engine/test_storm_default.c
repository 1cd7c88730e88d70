/* Law 1 in storms, on the default model; see testing_storm.h. Needs the model in the cache, and is skipped without it.
 */
#include "engine/testing_storm.h"

#include "base/limits.h"
#include "hub/hub.h"

static void storms_change_no_answer_of_the_default_model(void **state)
{
    char path[PATH_BYTES_MAX];
    struct hub *hub;
    struct hub_options o;
    struct error e;
    (void)state;
    hub_options_init(&o);
    o.offline = true;
    assert_ok(e, hub_open(&hub, &o, &e));
    const enum err err = hub_resolve(hub, NULL, path, &e);
    hub_close(hub);
    if (STORM_SANITIZED || err != OK) {
        print_message("SKIP: %s\n", STORM_SANITIZED ? "too slow under a sanitizer" : e.text);
        skip();
    }
    const struct storm_model m = {.shape = "the default model",
        .path = path,
        .kv = DTYPE_F16,
        .n_requests = 24, /* prefill-first with a hot cache, swapping, recomputing; late, far and not */
        .only = 1u << 2 | 1u << 7 | 1u << 8 | 1u << 12};
    storm_run(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(storms_change_no_answer_of_the_default_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

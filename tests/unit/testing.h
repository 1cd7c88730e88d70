/* What every unit test includes: cmocka with the headers it forgets, and assertions for our error convention. */
#ifndef TESTS_TESTING_H
#define TESTS_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"

/* The call succeeds; otherwise the error's sentence is printed. `e` is a struct error in scope. */
#define assert_ok(e, call)                                                                                             \
    do {                                                                                                               \
        (e) = (struct error){0};                                                                                       \
        const enum err code_ = (call);                                                                                 \
        if (code_ != OK)                                                                                               \
            fail_msg("%s: %s: %s", #call, err_name(code_), (e).text);                                                  \
    } while (0)

/* The call fails with that code, and its sentence contains the text. */
#define assert_fails(e, want, part, call)                                                                              \
    do {                                                                                                               \
        (e) = (struct error){0};                                                                                       \
        const enum err code_ = (call);                                                                                 \
        if (code_ != (want))                                                                                           \
            fail_msg("%s: got %s (%s), expected %s", #call, err_name(code_), (e).text, err_name(want));                \
        if (strstr((e).text, (part)) == NULL)                                                                          \
            fail_msg("%s: '%s' does not say '%s'", #call, (e).text, (part));                                           \
    } while (0)

#endif

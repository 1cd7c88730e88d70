/* Private to recording: frames, and the fields that writer and reader share. */
#ifndef ENGINE_RECORD_INT_H
#define ENGINE_RECORD_INT_H

#include "base/reader.h"
#include "engine/record.h"

#define RECORD_MAGIC   "quernrec"
#define RECORD_VERSION 5u

enum frame_kind {
    FRAME_OPTIONS = 1,
    FRAME_VOCAB,
    FRAME_SUBMIT,
    FRAME_LOOK,
    FRAME_SWEEP,
    FRAME_PLAN,
    FRAME_COMMIT,
    FRAME_END,
    FRAME_ABORT,
    FRAME_WEIGHT,
    FRAME_JUMP,
    FRAME_GUESS,
};

/* A field of a struct; all travel as 64 bits. */
struct field {
    uint16_t at;
    enum field_type { FIELD_U32, FIELD_I32, FIELD_U64, FIELD_F64, FIELD_F32, FIELD_BOOL, FIELD_ENUM } type;
};

struct fields {
    const struct field *v;
    uint32_t n;
};

extern const struct fields record_sched_fields, record_kv_fields, record_request_fields;

uint64_t field_get(const void *from, const struct field *f);
void field_set(void *to, const struct field *f, uint64_t bits);

/* The used parts of a plan, in order; n of them. The header goes first, with its capacities. */
#define PLAN_PARTS 13
struct plan_part {
    const void *p;
    size_t bytes;
};
void record_plan_parts(const struct plan *p, struct plan_part out[PLAN_PARTS]);

#endif

/* Which of the library's algorithms a product takes: the table, and the file that keeps it between starts. Sums depend
 * on the algorithm, so what was measured once must stay as it was: otherwise the same model would give other bits after
 * each start, as the clock had it. Nothing here knows a card: an algorithm is 64 bytes of the library's own. choose.cu
 * measures.
 *
 * The table is a list of shapes, in the order in which a model was found to have them. The file says which of them have
 * an algorithm of their own; its key is a hash of the machine and of the whole list, so a file of another card,
 * library, model or batch size is foreign, and so is one of another order.
 *
 * Threads: one at a time. */
#ifndef CUDA_CHOICES_H
#define CUDA_CHOICES_H

#include "base/base.h"
#include "base/hash.h"

#define CHOICE_ALGO_BYTES 64
#define CHOICE_NONE       UINT32_MAX

/* A product of `rows` rows, in the library's terms. */
struct choice_shape {
    uint32_t n_out, n_in, ldw, ldc;
    uint32_t type, out_type; /* cudaDataType */
    uint32_t scaled, adds;   /* 0 or 1 */
    uint32_t rows;
};

struct choice {
    struct choice_shape shape;
    bool has_algo; /* otherwise the library's first */
    unsigned char algo[CHOICE_ALGO_BYTES];
};

struct choices {
    struct choice *all; /* [CUDA_CHOICES_MAX] */
    uint32_t n;
};

bool choices_init(struct choices *c); /* false: no memory */
void choices_fini(struct choices *c);

/* The place of a shape, which is added when it is new; CHOICE_NONE when the table is full. */
uint32_t choices_note(struct choices *c, const struct choice_shape *s);

/* The choice for a product: that of the fewest rows, of those with at least as many as it has; NULL when there is none
 * or it has no algorithm of its own. */
const struct choice *choices_find(const struct choices *c, const struct choice_shape *s);

uint32_t choices_chosen(const struct choices *c); /* how many have an algorithm of their own */
void choices_forget(struct choices *c);           /* none has */

/* What a file must be about to be this table's. machine: whatever else an algorithm depends on. */
struct hash128 choices_key(const struct choices *c, const char *machine);
/* Of the shapes and what was chosen for them; 0 when nothing was. */
uint64_t choices_hash(const struct choices *c);

/* The file's name in dir, of its key; false when the path is too long. path: PATH_BYTES_MAX. */
bool choices_path(const char *dir, struct hash128 key, char *path);
/* Whether a file can be written in dir, which is made when it is missing. */
bool choices_can_keep(const char *dir);

/* From the file, when it is whole and of this key; otherwise the table is left as it is. */
enum err choices_read(struct choices *c, struct hash128 key, const char *path, struct error *e) MUST_CHECK;
enum err choices_write(const struct choices *c, struct hash128 key, const char *path, struct error *e) MUST_CHECK;
/* The same of bytes. */
enum err choices_parse(struct choices *c, struct hash128 key, const void *bytes, size_t n, struct error *e) MUST_CHECK;

#endif

/* Private to format/: the open source, and what its files need of each other. Tests and fuzz targets may include it. */
#ifndef FORMAT_FORMAT_INT_H
#define FORMAT_FORMAT_INT_H

#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"
#include "format/format_gguf.h"

/* Finding a struct by the struct str it begins with. Open addressing over the array's indices; the hash is seeded
 * anew for every table, so that a file cannot be written to collide. */
struct name_index {
    uint32_t *slots;  /* index + 1, 0 = empty */
    uint64_t n_slots; /* a power of two, more than twice the names; 0 = no names */
    uint64_t seed;
};

/* Index n structs of stride bytes, each beginning with its name. Two equal names: ERR_FORMAT, "<what> 'x' twice". */
enum err name_index_build(
    struct name_index *ix, const void *items, size_t stride, uint64_t n, const char *what, struct error *e) MUST_CHECK;
const void *name_index_find(const struct name_index *ix, const void *items, size_t stride, struct str name);
void name_index_fini(struct name_index *ix);

/* One file's metadata; gguf.c fills it, gguf_fields.c reads it. */
struct gguf {
    uint32_t version;
    unsigned char *header; /* the file's first bytes, up to the end of the tensor list */
    uint64_t header_bytes;
    struct gguf_field *fields;
    uint64_t n_fields, fields_end; /* where they end in the header */
    struct name_index index;
    uint64_t alignment;
    uint64_t n_tensors;
};

struct source_part {
    struct model_part info;
    char *path;
    int fd; /* kept to ask later whether the file changed */
    struct file_map map;
    struct gguf *gguf;     /* NULL for safetensors */
    struct arena names;    /* tensor names of a safetensors file */
    uint64_t first_tensor; /* in the source's list */
};

struct model_source {
    enum model_kind kind;
    char *path;
    char *folder; /* of the HF files; NULL for GGUF */
    struct source_part *parts;
    uint32_t n_parts;
    struct model_tensor *tensors;
    uint64_t n_tensors, cap_tensors;
    struct name_index index;
    char *files[MODEL_FILE_COUNT];
};

/* source.c. */
/* Open and map a file as the next part; parts_max was given to source_parts_init. */
enum err source_parts_init(struct model_source *s, uint32_t parts_max, struct error *e) MUST_CHECK;
enum err source_part_open(
    struct model_source *s, const char *path, struct source_part **out, struct error *e) MUST_CHECK;
enum err source_tensors_reserve(struct model_source *s, uint64_t more, struct error *e) MUST_CHECK;

/* A tensor as a header states it; offset counts from the start of the file. */
struct tensor_claim {
    struct str name; /* must outlive the source */
    enum dtype dtype;
    uint32_t n_dims;
    uint64_t shape[TENSOR_DIMS_MAX]; /* outermost first */
    uint64_t offset;
};
/* Check the claim against the part's file and append it; room was reserved. */
enum err source_tensor_add(
    struct model_source *s, struct source_part *p, const struct tensor_claim *c, struct error *e) MUST_CHECK;
/* No two tensors of the part share a byte; dense also wants no byte between data_at and the end to be left over. */
enum err source_part_check(const struct model_source *s, const struct source_part *p, uint64_t data_at, bool dense,
    struct error *e) MUST_CHECK;
/* Names of tensors and keys may be printed and compared by anybody: not empty, UTF-8, no control bytes. */
bool source_name_is_clean(struct str name);
/* Put a path in front of an error; the end of it when it is long. */
void source_error_prefix(struct error *e, const char *path);

/* gguf.c: read a part's header into p->gguf and append its tensors; gguf_free takes NULL. */
enum err gguf_part_read(struct model_source *s, struct source_part *p, struct error *e) MUST_CHECK;
void gguf_free(struct gguf *g);

/* gguf_split.c: open path and, when it belongs to a split set, all files of the set. */
enum err gguf_source_open(struct model_source *s, struct error *e) MUST_CHECK;
struct split_name {
    size_t prefix; /* bytes of the path before the suffix; the suffix is absent when no is 0 */
    uint32_t no;   /* from 1 */
    uint32_t count;
};
struct split_name split_name_of(const char *path);

/* gguf_folder.c: the one .gguf model of a folder. ERR_NOT_FOUND, without a text, when there is none. */
enum err gguf_folder_pick(const char *folder, char path[PATH_BYTES_MAX], struct error *e) MUST_CHECK;

/* gguf_fields.c: bytes of one element, 0 for strings and arrays. */
uint32_t gguf_type_bytes(enum gguf_type t);

/* file_dtypes.c: what a file calls a dtype. ERR_UNSUPPORTED names one we do not know. */
enum err dtype_of_gguf(uint32_t id, enum dtype *out, struct error *e) MUST_CHECK;
enum err dtype_of_safetensors(struct str name, enum dtype *out, struct error *e) MUST_CHECK;

/* safetensors.c: read a part's header and append its tensors. */
enum err safetensors_part_read(struct model_source *s, struct source_part *p, struct error *e) MUST_CHECK;
/* Append the tensors of a parsed header (n bytes of JSON after the length). */
enum err safetensors_header_read(
    struct model_source *s, struct source_part *p, struct str json, struct error *e) MUST_CHECK;

/* hf_folder.c. */
bool hf_folder_has_weights(const char *folder);                              /* by name alone */
enum err hf_folder_open(struct model_source *s, struct error *e) MUST_CHECK; /* s->path is a folder */
enum err hf_file_open(struct model_source *s, struct error *e) MUST_CHECK;   /* s->path is a .safetensors file */
/* The real path of a file of the folder. ERR_INVALID for a name that is not plain or a link that leads out. */
enum err hf_path_resolve(const char *folder, struct str name, char out[PATH_BYTES_MAX], struct error *e) MUST_CHECK;

/* config.c: a row per family, and the checks both readers end with. */
struct arch_row {
    enum model_arch arch;
    const char *name;        /* ours */
    const char *gguf_name;   /* general.architecture; NULL = no GGUF name of its own */
    const char *hf_types[3]; /* model_type of config.json */
};
const struct arch_row *arch_of_gguf(struct str name);
const struct arch_row *arch_of_hf(struct str model_type);
void model_config_init(struct model_config *c);
void model_config_copy_name(char out[MODEL_NAME_BYTES_MAX], struct str name);
void model_config_add_eos(struct model_config *c, uint64_t id);
/* Layer i is global when (i + 1) is a multiple of pattern, else local; 0 = all local. */
void model_config_set_pattern(struct model_config *c, uint32_t pattern);

/* The numbers both formats state under names of their own. */
enum config_key {
    KEY_CONTEXT,
    KEY_LAYERS,
    KEY_HIDDEN,
    KEY_FFN,
    KEY_HEADS,
    KEY_KV_HEADS,
    KEY_HEAD_DIM,
    KEY_VOCAB,
    KEY_EXPERTS,
    KEY_EXPERTS_USED,
    KEY_EXPERT_FFN,
    KEY_WINDOW,
    KEY_EPS,
    KEY_ATTN_SOFTCAP,
    KEY_FINAL_SOFTCAP,
    KEY_BOS,
    KEY_EOS,
    KEY_PAD,
    KEY_ROPE_DIMS,
    KEY_COUNT
};
#define CONFIG_KEY_MAX 96
struct config_keys {
    char name[KEY_COUNT][CONFIG_KEY_MAX];
};

/* Whole and real numbers of the record, with the range a file may state. */
struct config_number {
    enum config_key key;
    size_t field; /* offset in struct model_config */
    uint64_t min, max;
};
extern const struct config_number config_wholes[];
extern const size_t n_config_wholes;
struct config_real {
    enum config_key key;
    size_t field;
    double min, max;
};
extern const struct config_real config_reals[];
extern const size_t n_config_reals;

/* Fill what follows from other fields (kv heads, head size); called before rope is read. */
void model_config_derive(struct model_config *c);
/* Check everything against everything; for known architectures. */
enum err model_config_check(const struct model_config *c, const struct config_keys *k, struct error *e) MUST_CHECK;

enum err config_from_gguf(const struct model_source *s, struct model_config *c, struct error *e) MUST_CHECK;
/* config_hf.c: documents already parsed; generation may be NULL. */
enum err config_from_json(
    const json_t *config, const json_t *generation, struct model_config *c, struct error *e) MUST_CHECK;
/* config_rope.c: rope fields of config.json (old and new spelling). */
enum err config_rope_from_json(const json_t *config, struct model_config *c, struct error *e) MUST_CHECK;

/* config_quant.c: quantization_config of config.json. */
enum err config_quant_from_json(const json_t *config, struct model_config *c, struct error *e) MUST_CHECK;

#endif

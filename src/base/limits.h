/* Every maximum in the program, with its reason. A number that bounds input, memory or time lives here and nowhere
 * else; code that meets a limit answers ERR_LIMIT and names it. */
#ifndef BASE_LIMITS_H
#define BASE_LIMITS_H

#include <stdint.h>

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

/* JSON from files and requests. */
#define JSON_DEPTH_MAX 128         /* real schemas stay under 20; the parser recurses, so this bounds its stack */
#define JSON_BYTES_MAX (128 * MIB) /* the largest public tokenizer.json has 33 MB; parsed it takes ten times that */

/* Paths and names. */
#define PATH_BYTES_MAX 4096 /* PATH_MAX of Linux */

/* Tensors. */
#define TENSOR_DIMS_MAX 8 /* GGUF allows 4, vision convolutions in HF files have 5; a shape stays inside its view */

#endif

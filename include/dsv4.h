/* dsv4.h: the C API of dsv4 (docs/c-api.md). C99 and C++.
 *
 * Handles are opaque. Functions return a dsv4_code; `error` may be NULL. Structs begin with their size, which the caller sets with
 * the matching *_init function. The library prints nothing and never exits. A model and what it made: one thread per session, sampler and
 * parser at a time; different ones from any threads. Handles are freed in any order: a model's memory goes back with the last that was made from it.
 */
#ifndef DSV4_H
#define DSV4_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Changes with every change of a struct or of a function's meaning. */
#define DSV4_ABI 5

/* The ABI number of the library, to compare with DSV4_ABI, and its version. */
uint32_t dsv4_abi(void);
const char* dsv4_version(void);

typedef enum dsv4_code {
  DSV4_OK = 0,
  DSV4_INVALID_ARGUMENT = 1,    /* The same call never succeeds. */
  DSV4_NOT_FOUND = 2,           /* A file or a name does not exist. */
  DSV4_DATA_LOSS = 3,           /* A file or a snapshot is damaged. */
  DSV4_FAILED_PRECONDITION = 4, /* The object's state forbids the call. */
  DSV4_OUT_OF_RANGE = 5,        /* Past the context or another limit. */
  DSV4_RESOURCE_EXHAUSTED = 6,  /* Out of memory. */
  DSV4_UNIMPLEMENTED = 7,       /* This build cannot do it. */
  DSV4_UNAVAILABLE = 8,
  DSV4_CANCELLED = 9,
  DSV4_DEADLINE_EXCEEDED = 10,
  DSV4_INTERNAL = 11
} dsv4_code;

typedef struct dsv4_error {
  int32_t code;       /* A dsv4_code. */
  char message[1020]; /* UTF-8, ends with a zero byte; a longer text is cut. */
} dsv4_error;

/* Bytes that the library made. */
typedef struct dsv4_buffer dsv4_buffer;
const void* dsv4_buffer_data(const dsv4_buffer* buffer);
size_t dsv4_buffer_size(const dsv4_buffer* buffer); /* In bytes. */
void dsv4_buffer_free(dsv4_buffer* buffer);         /* As all *_free: NULL does nothing. */

/* ---- Model ---- */

typedef struct dsv4_model dsv4_model;

/* After each layer that is loaded, on the loading thread. Another value than 0 ends the load with DSV4_CANCELLED. */
typedef int32_t (*dsv4_progress)(int64_t layers_done, int64_t num_layers, void* user);
/* level: 1 info, 2 warning, 3 error. From the thread that calls the library. */
typedef void (*dsv4_log)(int32_t level, const char* message, void* user);

typedef struct dsv4_model_options {
  size_t size;
  const char* path;    /* A checkpoint directory. */
  const char* backend; /* "auto" (NULL), "cpu", "reference", or "cuda" where the library was built with it. */
  const char* numerics;      /* "release" (NULL) or "plain". */
  const char* revision;      /* Of the chat format: "v4", "v4-0731", "v4.1"; NULL: as the directory says. */
  int32_t threads;           /* 0: one per core. */
  int32_t device;            /* The GPU of "cuda", as the driver counts. */
  int32_t max_layers;        /* 0: all. */
  dsv4_progress on_progress; /* NULL: none. */
  dsv4_log on_log;           /* NULL: messages are dropped. */
  void* user;                /* Of both callbacks. */
} dsv4_model_options;

void dsv4_model_options_init(dsv4_model_options* options);
dsv4_code dsv4_model_open(const dsv4_model_options* options, dsv4_model** model, dsv4_error* error);
void dsv4_model_free(dsv4_model* model);
/* What it runs on, as "cuda (NVIDIA H200)". "auto" is a usable GPU where the model has room on it, else the CPU, and then on_log is told
 * which GPU is idle and why. */
const char* dsv4_model_backend(const dsv4_model* model);
int64_t dsv4_model_vocab_size(const dsv4_model* model);
int64_t dsv4_model_context_length(const dsv4_model* model);
/* Tokens of an answer at most that the model's folder names (max_new_tokens); 0: none. For callers that have no number of their own. */
int64_t dsv4_model_max_tokens(const dsv4_model* model);
/* Whether the token ends an answer: 1 or 0. */
int32_t dsv4_model_is_stop(const dsv4_model* model, int32_t token);

/* ---- Text ---- */

/* Ids (int32_t) of UTF-8 text of `size` bytes. markers != 0: "<think>" and its like in it are single tokens. */
dsv4_code dsv4_tokenize(const dsv4_model* model, const char* text, size_t size, int32_t markers,
                        dsv4_buffer** ids, dsv4_error* error);
/* UTF-8 of ids. */
dsv4_code dsv4_detokenize(const dsv4_model* model, const int32_t* ids, size_t num_ids, dsv4_buffer** text,
                          dsv4_error* error);

typedef struct dsv4_prompt dsv4_prompt;
/* Renders a conversation: a JSON object with "messages", and optionally "tools", "thinking_mode" ("thinking", the default, or "chat") and
 * "effort". Another member is an error. */
dsv4_code dsv4_render(const dsv4_model* model, const char* request_json, dsv4_prompt** prompt,
                      dsv4_error* error);
const char* dsv4_prompt_text(const dsv4_prompt* prompt);
const int32_t* dsv4_prompt_ids(const dsv4_prompt* prompt, size_t* num_ids);
/* What the model's folder says of a question in words that the model does not know, whose answer is noise. Empty for other conversations and models. */
const char* dsv4_prompt_notice(const dsv4_prompt* prompt);
void dsv4_prompt_free(dsv4_prompt* prompt);

typedef enum dsv4_delta_kind {
  DSV4_REASONING = 0,       /* text: a piece of the reasoning. */
  DSV4_CONTENT = 1,         /* text: a piece of the answer. */
  DSV4_TOOL_CALL_BEGIN = 2, /* call, text: the function's name. */
  DSV4_ARGUMENTS = 3,       /* call, text: a piece of the arguments' JSON. */
  DSV4_TOOL_CALL_END = 4,   /* call: its arguments are one JSON object. */
  DSV4_DONE = 5             /* text: "stop", "length" or "tool_calls". */
} dsv4_delta_kind;

typedef struct dsv4_delta {
  size_t size;
  int32_t kind; /* A dsv4_delta_kind. */
  int32_t call; /* -1 where none is meant. */
  const char* text;
  size_t text_size;
} dsv4_delta;
typedef void (*dsv4_on_delta)(const dsv4_delta* delta, void* user);

/* Parses the answer to `prompt`, which may be freed. `stops`: strings that end the content, none of them empty. */
typedef struct dsv4_parser dsv4_parser;
dsv4_code dsv4_parser_new(const dsv4_model* model, const dsv4_prompt* prompt, const char* const* stops,
                          size_t num_stops, dsv4_parser** parser, dsv4_error* error);
/* Goes on by tokens, and calls `on_delta` with what became certain. *done (may be NULL) is 1 when a stop string has ended the answer. */
dsv4_code dsv4_parser_feed(dsv4_parser* parser, const int32_t* ids, size_t num_ids, dsv4_on_delta on_delta,
                           void* user, int32_t* done, dsv4_error* error);
/* The answer is over, by its length if cut != 0. Ends with DSV4_DONE. Once. */
dsv4_code dsv4_parser_finish(dsv4_parser* parser, int32_t cut, dsv4_on_delta on_delta, void* user,
                             dsv4_error* error);
void dsv4_parser_free(dsv4_parser* parser);

/* ---- Sessions: token ids in, logits out ---- */

typedef struct dsv4_session dsv4_session;
dsv4_code dsv4_session_new(dsv4_model* model, dsv4_session** session, dsv4_error* error);
void dsv4_session_free(dsv4_session* session);
int64_t dsv4_session_length(const dsv4_session* session);
/* Reads tokens. all_logits != 0: the logits of every one are kept, otherwise those of the last. */
dsv4_code dsv4_session_append(dsv4_session* session, const int32_t* ids, size_t num_ids, int32_t all_logits,
                              dsv4_error* error);
/* float [num_rows, vocab_size] of the last append; until the session's next call. FAILED_PRECONDITION when there are none. */
dsv4_code dsv4_session_logits(const dsv4_session* session, const float** logits, size_t* num_rows,
                              dsv4_error* error);
/* Takes the last tokens back; 64 always can be. The logits are gone. */
dsv4_code dsv4_session_rewind(dsv4_session* session, int64_t num_tokens, dsv4_error* error);
/* A copy that goes on by itself; shares memory. */
dsv4_code dsv4_session_fork(const dsv4_session* session, dsv4_session** fork, dsv4_error* error);
/* The state as bytes, and back, in another process too. The logits are not part of it. The first call of either reads and hashes every byte of
 * the checkpoint: bytes of other weights, numerics, options, backend or build are refused with DSV4_INVALID_ARGUMENT. DSV4_DATA_LOSS also when a file of
 * the model was changed after it was loaded. */
dsv4_code dsv4_session_snapshot(const dsv4_session* session, dsv4_buffer** bytes, dsv4_error* error);
dsv4_code dsv4_session_restore(dsv4_session* session, const void* bytes, size_t size, dsv4_error* error);

typedef struct dsv4_chunk {
  size_t size;
  dsv4_session* session;
  const int32_t* ids;
  size_t num_ids;
  int32_t all_logits;
} dsv4_chunk;
/* Appends to several different sessions of one model in one step. Results are those of separate appends. */
dsv4_code dsv4_step(dsv4_chunk* chunks, size_t num_chunks, dsv4_error* error);

/* ---- Sampling ---- */

/* What the content, behind the reasoning, has to be. */
typedef enum dsv4_rule_kind {
  DSV4_RULE_NONE = 0,
  DSV4_RULE_JSON_SCHEMA = 1,
  DSV4_RULE_REGEX = 2,         /* All of it matches. */
  DSV4_RULE_CHOICE = 3,        /* A JSON list of texts. */
  DSV4_RULE_GRAMMAR = 4,       /* GBNF or Lark. */
  DSV4_RULE_STRUCTURAL_TAG = 5 /* JSON. */
} dsv4_rule_kind;

typedef struct dsv4_sampling {
  size_t size;
  float temperature; /* 0: greedy. */
  float top_p;
  float min_p;
  float repetition_penalty;
  float presence_penalty;
  float frequency_penalty;
  int32_t top_k;     /* 0: all. */
  int32_t rule_kind; /* A dsv4_rule_kind. */
  uint64_t seed;
  const char* rule; /* Its text; NULL with DSV4_RULE_NONE. */
} dsv4_sampling;

void dsv4_sampling_init(dsv4_sampling* sampling);

typedef struct dsv4_sampler dsv4_sampler;
/* Of one answer. `prompt` (may be NULL) tells a grammar whether the answer begins with reasoning, and its tokens to the penalties. */
dsv4_code dsv4_sampler_new(dsv4_model* model, const dsv4_sampling* sampling, const dsv4_prompt* prompt,
                           dsv4_sampler** sampler, dsv4_error* error);
void dsv4_sampler_free(dsv4_sampler* sampler);
/* Chooses the token behind the session's last one. It is not appended. */
dsv4_code dsv4_sample(dsv4_sampler* sampler, const dsv4_session* session, int32_t* token, dsv4_error* error);

typedef struct dsv4_row {
  size_t size;
  dsv4_session* session;
  dsv4_sampler* sampler;
  int64_t left; /* Tokens that the answer may have, at least 1; counted down. */
} dsv4_row;
/* Answers of several different sessions of one model go on together: each of at most `num_steps` steps is dsv4_sample for every row, then
 * dsv4_step with what was chosen. The call ends with the step in which a row ends: by a token that ends an answer, or by its last one. Neither
 * is appended. tokens: [num_steps, num_rows], of which *num_done rows are written. After an error those are whole steps; samplers may
 * have chosen once more. */
dsv4_code dsv4_decode(dsv4_row* rows, size_t num_rows, size_t num_steps, int32_t* tokens, size_t* num_done,
                      dsv4_error* error);

#ifdef __cplusplus
}
#endif
#endif /* DSV4_H */

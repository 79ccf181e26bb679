/* The C API on a small model: argv[1] is its directory, argv[2] the committed list of struct sizes. Compiled as C99 and as C++20. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "include/dsv4.h"

#define EXPECT(condition)                                                                \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, error.message); \
      exit(1);                                                                           \
    }                                                                                    \
  } while (0)
#define OK(call) EXPECT((call) == DSV4_OK)

static dsv4_error error;

typedef struct answer {
  char content[8192];
  char reason[32];
} answer;

static void on_delta(const dsv4_delta* delta, void* user) {
  answer* out = (answer*)user;
  EXPECT(delta->size == sizeof(*delta));
  if (delta->kind == DSV4_CONTENT)
    strncat(out->content, delta->text, sizeof(out->content) - strlen(out->content) - 1);
  if (delta->kind == DSV4_DONE) strncat(out->reason, delta->text, sizeof(out->reason) - 1);
}

/* Ends the load when *user is 1. */
static int32_t on_progress(int64_t done, int64_t total, void* user) {
  EXPECT(done >= 1 && done <= total);
  return --*(int*)user == 0;
}

/* Greedy but for a rule; at most 64 tokens. */
static void answer_to(dsv4_model* model, const char* request, int32_t rule_kind, const char* rule,
                      answer* out) {
  dsv4_prompt* prompt;
  dsv4_session* session;
  dsv4_sampler* sampler;
  dsv4_parser* parser;
  dsv4_sampling sampling;
  const int32_t* ids;
  size_t num_ids;
  int32_t token = -1;
  int32_t done = 0;
  int i;
  memset(out, 0, sizeof(*out));
  dsv4_sampling_init(&sampling);
  sampling.temperature = 0;
  sampling.rule_kind = rule_kind;
  sampling.rule = rule;
  OK(dsv4_render(model, request, &prompt, &error));
  OK(dsv4_session_new(model, &session, &error));
  OK(dsv4_sampler_new(model, &sampling, prompt, &sampler, &error));
  OK(dsv4_parser_new(model, prompt, NULL, 0, &parser, &error));
  ids = dsv4_prompt_ids(prompt, &num_ids);
  OK(dsv4_session_append(session, ids, num_ids, 0, &error));
  for (i = 0; i < 64 && !done; ++i) {
    OK(dsv4_sample(sampler, session, &token, &error));
    if (dsv4_model_is_stop(model, token)) break;
    OK(dsv4_parser_feed(parser, &token, 1, on_delta, out, &done, &error));
    OK(dsv4_session_append(session, &token, 1, 0, &error));
  }
  OK(dsv4_parser_finish(parser, i == 64, on_delta, out, &error));
  EXPECT(dsv4_parser_finish(parser, 0, on_delta, out, &error) == DSV4_FAILED_PRECONDITION);
  dsv4_parser_free(parser);
  dsv4_sampler_free(sampler);
  dsv4_session_free(session);
  dsv4_prompt_free(prompt);
}

static void test_wrong_rules(dsv4_model* model) {
  dsv4_sampler* sampler = NULL;
  dsv4_sampling sampling;
  dsv4_sampling_init(&sampling);
  sampling.rule_kind = DSV4_RULE_REGEX;
  EXPECT(dsv4_sampler_new(model, &sampling, NULL, &sampler, &error) == DSV4_INVALID_ARGUMENT &&
         sampler == NULL);
  sampling.rule = "(";
  EXPECT(dsv4_sampler_new(model, &sampling, NULL, &sampler, &error) == DSV4_INVALID_ARGUMENT &&
         sampler == NULL);
  EXPECT(strstr(error.message, "dsv4_sampling.rule") != NULL);
  sampling.rule_kind = 6;
  EXPECT(dsv4_sampler_new(model, &sampling, NULL, &sampler, &error) == DSV4_INVALID_ARGUMENT &&
         sampler == NULL);
  sampling.rule_kind = DSV4_RULE_NONE;
  EXPECT(dsv4_sampler_new(model, &sampling, NULL, &sampler, &error) == DSV4_INVALID_ARGUMENT &&
         sampler == NULL);
}

static void test_text(dsv4_model* model) {
  /* By kind: a rule, and the two answers that it allows. */
  static const char* const rules[][3] = {
      {"{\"enum\": [\"red\", \"green\"]}", "\"red\"", "\"green\""},
      {"red|green", "red", "green"},
      {"[\"red\", \"green\"]", "red", "green"},
      {"root ::= \"red\" | \"green\"", "red", "green"},
      {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"or\", \"elements\": [{\"type\": "
       "\"const_string\", "
       "\"value\": \"red\"}, {\"type\": \"const_string\", \"value\": \"green\"}]}}",
       "red", "green"}};
  size_t i;
  const char* text = "What is the capital of France?";
  dsv4_buffer* ids;
  dsv4_buffer* again;
  dsv4_prompt* prompt = NULL;
  answer out;
  OK(dsv4_tokenize(model, text, strlen(text), 0, &ids, &error));
  OK(dsv4_detokenize(model, (const int32_t*)dsv4_buffer_data(ids), dsv4_buffer_size(ids) / sizeof(int32_t),
                     &again, &error));
  EXPECT(dsv4_buffer_size(again) == strlen(text) && memcmp(dsv4_buffer_data(again), text, strlen(text)) == 0);
  dsv4_buffer_free(ids);
  dsv4_buffer_free(again);
  EXPECT(dsv4_render(model, "{\"messages\": [], \"colour\": 1}", &prompt, &error) == DSV4_INVALID_ARGUMENT);
  EXPECT(strstr(error.message, "colour") != NULL && prompt == NULL);
  answer_to(model,
            "{\"messages\": [{\"role\": \"user\", \"content\": \"What is the capital of France?\"}], "
            "\"thinking_mode\": \"chat\"}",
            DSV4_RULE_NONE, NULL, &out);
  EXPECT(strlen(out.content) > 0);
  printf("%s\n", out.content);
  for (i = 0; i < sizeof(rules) / sizeof(rules[0]); ++i) {
    answer_to(model,
              "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}], \"thinking_mode\": \"chat\"}",
              (int32_t)i + 1, rules[i][0], &out);
    EXPECT(strcmp(out.content, rules[i][1]) == 0 || strcmp(out.content, rules[i][2]) == 0);
    EXPECT(strcmp(out.reason, "stop") == 0);
  }
  test_wrong_rules(model);
}

static void test_stops(const dsv4_model* model) {
  static const char* const stops[] = {"is", ""};
  dsv4_prompt* prompt;
  dsv4_parser* parser;
  OK(dsv4_render(model, "{\"messages\": [{\"role\": \"user\", \"content\": \"Was ist die Hauptstadt?\"}]}", &prompt, &error));
  EXPECT(strstr(dsv4_prompt_notice(prompt), "English") != NULL);
  dsv4_prompt_free(prompt);
  EXPECT(dsv4_model_max_tokens(model) == 512);
  OK(dsv4_render(model, "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}", &prompt, &error));
  EXPECT(dsv4_prompt_notice(prompt)[0] == 0);
  EXPECT(dsv4_parser_new(model, prompt, stops, 2, &parser, &error) == DSV4_INVALID_ARGUMENT);
  EXPECT(strstr(error.message, "stops: got an empty text") != NULL);
  OK(dsv4_parser_new(model, prompt, stops, 1, &parser, &error));
  dsv4_parser_free(parser);
  dsv4_prompt_free(prompt);
}

static void expect_same_logits(const dsv4_session* a, const dsv4_session* b, size_t vocab) {
  const float* of_a;
  const float* of_b;
  size_t rows_a;
  size_t rows_b;
  OK(dsv4_session_logits(a, &of_a, &rows_a, &error));
  OK(dsv4_session_logits(b, &of_b, &rows_b, &error));
  EXPECT(memcmp(of_a + (rows_a - 1) * vocab, of_b + (rows_b - 1) * vocab, vocab * sizeof(float)) == 0);
}

static void test_sessions(dsv4_model* model) {
  const int32_t ids[] = {5, 17, 9, 33, 21, 8};
  const size_t vocab = (size_t)dsv4_model_vocab_size(model);
  dsv4_session* whole;
  dsv4_session* parts;
  dsv4_session* fork;
  dsv4_session* restored;
  dsv4_buffer* bytes;
  dsv4_chunk chunks[2];
  const float* logits;
  size_t rows;
  OK(dsv4_session_new(model, &whole, &error));
  OK(dsv4_session_new(model, &parts, &error));
  OK(dsv4_session_new(model, &restored, &error));
  EXPECT(dsv4_session_logits(whole, &logits, &rows, &error) == DSV4_FAILED_PRECONDITION);
  EXPECT(dsv4_session_append(whole, ids, 0, 0, &error) == DSV4_INVALID_ARGUMENT);
  OK(dsv4_session_append(whole, ids, 6, 1, &error));
  OK(dsv4_session_logits(whole, &logits, &rows, &error));
  EXPECT(rows == 6);

  OK(dsv4_session_append(parts, ids, 4, 0, &error));
  OK(dsv4_session_fork(parts, &fork, &error));
  expect_same_logits(parts, fork, vocab);
  OK(dsv4_session_append(parts, ids, 2, 0, &error));
  OK(dsv4_session_rewind(parts, 2, &error));
  EXPECT(dsv4_session_length(parts) == 4);
  EXPECT(dsv4_session_rewind(parts, 5, &error) == DSV4_INVALID_ARGUMENT);
  OK(dsv4_session_snapshot(fork, &bytes, &error));
  OK(dsv4_session_restore(restored, dsv4_buffer_data(bytes), dsv4_buffer_size(bytes), &error));
  EXPECT(dsv4_session_restore(restored, dsv4_buffer_data(bytes), dsv4_buffer_size(bytes) - 1, &error) !=
         DSV4_OK);
  dsv4_buffer_free(bytes);
  EXPECT(dsv4_session_length(restored) == 4);

  memset(chunks, 0, sizeof(chunks));
  chunks[0].size = chunks[1].size = sizeof(dsv4_chunk);
  chunks[0].session = parts;
  chunks[1].session = fork;
  chunks[0].ids = chunks[1].ids = ids + 4;
  chunks[0].num_ids = chunks[1].num_ids = 2;
  OK(dsv4_step(chunks, 2, &error));
  OK(dsv4_session_append(restored, ids + 4, 2, 0, &error));
  expect_same_logits(whole, parts, vocab);
  expect_same_logits(whole, fork, vocab);
  expect_same_logits(whole, restored, vocab);
  chunks[1].session = parts;
  EXPECT(dsv4_step(chunks, 2, &error) == DSV4_INVALID_ARGUMENT);
  dsv4_session_free(whole);
  dsv4_session_free(parts);
  dsv4_session_free(fork);
  dsv4_session_free(restored);
  dsv4_session_free(NULL);
}

#define NUM_ROWS 3
#define MOST_TOKENS 14 /* One answer is cut by it, the others end by themselves. */

static void test_wrong_rows(dsv4_session** sessions, dsv4_sampler** samplers) {
  dsv4_row rows[2];
  int32_t tokens[2];
  size_t done = 9;
  const int64_t length = dsv4_session_length(sessions[0]);
  rows[0].size = rows[1].size = sizeof(rows[0]);
  rows[0].session = rows[1].session = sessions[0];
  rows[0].sampler = samplers[0];
  rows[1].sampler = samplers[1];
  rows[0].left = rows[1].left = 5;
  EXPECT(dsv4_decode(rows, 0, 1, tokens, &done, &error) == DSV4_INVALID_ARGUMENT && done == 0);
  EXPECT(dsv4_decode(rows, 1, 0, tokens, &done, &error) == DSV4_INVALID_ARGUMENT);
  EXPECT(dsv4_decode(rows, 1, 1, NULL, &done, &error) == DSV4_INVALID_ARGUMENT);
  EXPECT(dsv4_decode(rows, 1, 1, tokens, NULL, &error) == DSV4_INVALID_ARGUMENT);
  EXPECT(dsv4_decode(rows, 2, 1, tokens, &done, &error) == DSV4_INVALID_ARGUMENT);
  EXPECT(strstr(error.message, "several rows") != NULL);
  rows[1].session = sessions[1];
  rows[1].sampler = NULL;
  EXPECT(dsv4_decode(rows, 2, 1, tokens, &done, &error) == DSV4_INVALID_ARGUMENT);
  EXPECT(strstr(error.message, "row 1") != NULL);
  rows[0].left = 0;
  EXPECT(dsv4_decode(rows, 1, 1, tokens, &done, &error) == DSV4_INVALID_ARGUMENT);
  EXPECT(strstr(error.message, "left 0") != NULL);
  rows[0].size = 8;
  EXPECT(dsv4_decode(rows, 1, 1, tokens, &done, &error) == DSV4_INVALID_ARGUMENT);
  EXPECT(strstr(error.message, "size 8") != NULL && dsv4_session_length(sessions[0]) == length);
  rows[0].size = sizeof(rows[0]);
  rows[0].left = 1;
  OK(dsv4_session_rewind(sessions[0], 1, &error));
  EXPECT(dsv4_decode(rows, 1, 1, tokens, &done, &error) == DSV4_FAILED_PRECONDITION && done == 0);
}

/* Answers of rows together are those of samples and appends one by one: greedy, drawn, and of a rule that ends one of them early. */
static void test_rows(dsv4_model* model) {
  static const char* const prompts[NUM_ROWS] = {"The capital of France", "Tell me", "What is"};
  dsv4_session* sessions[NUM_ROWS];
  dsv4_session* alone[NUM_ROWS];
  dsv4_sampler* samplers[NUM_ROWS];
  dsv4_row rows[NUM_ROWS];
  int32_t wanted[NUM_ROWS][MOST_TOKENS];
  int counts[NUM_ROWS] = {0, 0, 0};
  int of[NUM_ROWS] = {0, 1, 2}; /* Of each row, its answer. */
  size_t num_left = NUM_ROWS;
  size_t steps = 0;
  int at = 0;
  int with;
  int i;
  for (with = 0; with < 2; ++with) {
    for (i = 0; i < NUM_ROWS; ++i) {
      dsv4_sampling sampling;
      dsv4_buffer* ids;
      dsv4_sampling_init(&sampling);
      sampling.temperature = i == 0 ? 0.0F : 1.0F;
      sampling.seed = 7;
      sampling.rule_kind = i == 2 ? DSV4_RULE_REGEX : DSV4_RULE_NONE;
      sampling.rule = i == 2 ? "[a-z ]{6,20}" : NULL;
      OK(dsv4_sampler_new(model, &sampling, NULL, &samplers[i], &error));
      OK(dsv4_session_new(model, with ? &sessions[i] : &alone[i], &error));
      OK(dsv4_tokenize(model, prompts[i], strlen(prompts[i]), 0, &ids, &error));
      OK(dsv4_session_append(with ? sessions[i] : alone[i], (const int32_t*)dsv4_buffer_data(ids),
                             dsv4_buffer_size(ids) / sizeof(int32_t), 0, &error));
      dsv4_buffer_free(ids);
      if (with) {
        rows[i].size = sizeof(rows[i]);
        rows[i].session = sessions[i];
        rows[i].sampler = samplers[i];
        rows[i].left = MOST_TOKENS;
        continue;
      }
      while (counts[i] < MOST_TOKENS) {
        int32_t* token = &wanted[i][counts[i]++];
        OK(dsv4_sample(samplers[i], alone[i], token, &error));
        if (dsv4_model_is_stop(model, *token) || counts[i] == MOST_TOKENS) break;
        OK(dsv4_session_append(alone[i], token, 1, 0, &error));
      }
      dsv4_sampler_free(samplers[i]);
    }
  }
  EXPECT(counts[2] < counts[0]); /* One row goes on without it. */
  /* Steps of 1, 2, 3, .. tokens a call; rows that have ended are left out. */
  while (num_left > 0) {
    int32_t tokens[NUM_ROWS * MOST_TOKENS];
    size_t done;
    size_t row;
    OK(dsv4_decode(rows, num_left, ++steps, tokens, &done, &error));
    EXPECT(done >= 1 && done <= steps);
    for (i = 0; i < (int)done; ++i) {
      for (row = 0; row < num_left; ++row) {
        EXPECT(tokens[(size_t)i * num_left + row] == wanted[of[row]][at + i]);
      }
    }
    at += (int)done;
    row = 0;
    for (i = 0; i < (int)num_left; ++i) {
      EXPECT(rows[i].left == MOST_TOKENS - at && at <= counts[of[i]]);
      if (at == counts[of[i]]) continue;
      rows[row] = rows[i];
      of[row++] = of[i];
    }
    EXPECT(row < num_left || done == steps); /* It goes on until a row ends. */
    num_left = row;
  }
  EXPECT(at == MOST_TOKENS);
  for (i = 0; i < NUM_ROWS; ++i) {
    EXPECT(dsv4_session_length(sessions[i]) == dsv4_session_length(alone[i]));
    expect_same_logits(sessions[i], alone[i], (size_t)dsv4_model_vocab_size(model));
  }
  test_wrong_rows(sessions, samplers);
  for (i = 0; i < NUM_ROWS; ++i) {
    dsv4_session_free(sessions[i]);
    dsv4_session_free(alone[i]);
    dsv4_sampler_free(samplers[i]);
  }
}

/* As a collector of garbage does: the model's handle first. What it made goes on. */
static void test_model_freed_first(dsv4_model* model) {
  static const char* kRequest = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}";
  dsv4_sampling sampling;
  dsv4_session *session, *fork;
  dsv4_sampler* sampler;
  dsv4_prompt* prompt;
  dsv4_parser* parser;
  const int32_t* ids;
  size_t num_ids;
  int32_t token = -1;
  answer out = {"", ""};
  dsv4_sampling_init(&sampling);
  sampling.rule_kind = DSV4_RULE_REGEX;
  sampling.rule = "[a-z]+";
  OK(dsv4_render(model, kRequest, &prompt, &error));
  OK(dsv4_session_new(model, &session, &error));
  OK(dsv4_sampler_new(model, &sampling, NULL, &sampler, &error));
  OK(dsv4_parser_new(model, prompt, NULL, 0, &parser, &error));
  dsv4_model_free(model);
  ids = dsv4_prompt_ids(prompt, &num_ids);
  OK(dsv4_session_append(session, ids, num_ids, 0, &error));
  OK(dsv4_session_fork(session, &fork, &error));
  dsv4_session_free(session);
  OK(dsv4_sample(sampler, fork, &token, &error));
  EXPECT(token >= 0);
  dsv4_session_free(fork);
  OK(dsv4_parser_feed(parser, &token, 1, on_delta, &out, NULL, &error));
  OK(dsv4_parser_finish(parser, 1, on_delta, &out, &error));
  EXPECT(strcmp(out.reason, "length") == 0);
  dsv4_prompt_free(prompt);
  dsv4_parser_free(parser);
  dsv4_sampler_free(sampler);
}

/* The committed list: a struct that changed wants a new DSV4_ABI. */
static void test_abi(const char* path) {
  char wanted[1024] = {0};
  char got[1024];
  FILE* file = fopen(path, "r");
  EXPECT(file != NULL);
  EXPECT(fread(wanted, 1, sizeof(wanted) - 1, file) > 0);
  fclose(file);
  snprintf(
      got, sizeof(got),
      "abi %u\ndsv4_error %zu\ndsv4_model_options %zu\ndsv4_delta %zu\ndsv4_chunk %zu\ndsv4_sampling %zu\n"
      "dsv4_row %zu\n",
      (unsigned)dsv4_abi(), sizeof(dsv4_error), sizeof(dsv4_model_options), sizeof(dsv4_delta),
      sizeof(dsv4_chunk), sizeof(dsv4_sampling), sizeof(dsv4_row));
  if (strcmp(got, wanted) != 0) {
    fprintf(stderr, "got\n%swanted\n%s", got, wanted);
    exit(1);
  }
}

int main(int argc, char** argv) {
  dsv4_model_options options;
  dsv4_model* model = NULL;
  int calls_left = 1;
  if (argc != 3 && argc != 4) return 2;
  test_abi(argv[2]);
  dsv4_model_options_init(&options);
  options.path = "no such directory";
  EXPECT(dsv4_model_open(&options, &model, &error) == DSV4_NOT_FOUND && model == NULL);
  EXPECT(strstr(error.message, "no such directory") != NULL);
  options.path = argv[1];
  options.size = 8;
  EXPECT(dsv4_model_open(&options, &model, &error) == DSV4_INVALID_ARGUMENT);
  options.size = sizeof(options);
  options.backend = "abacus";
  EXPECT(dsv4_model_open(&options, &model, NULL) == DSV4_INVALID_ARGUMENT);
  options.backend = argc == 4 ? argv[3] : NULL;
  options.on_progress = on_progress;
  options.user = &calls_left;
  EXPECT(dsv4_model_open(&options, &model, &error) == DSV4_CANCELLED && model == NULL && calls_left == 0);
  calls_left = 1 << 20;
  OK(dsv4_model_open(&options, &model, &error));
  EXPECT(calls_left < 1 << 20);
  /* What was named is what it runs on; else a GPU or the CPU. */
  if (argc == 4) EXPECT(strncmp(dsv4_model_backend(model), argv[3], strlen(argv[3])) == 0);
  if (argc != 4)
    EXPECT(strncmp(dsv4_model_backend(model), "cpu (", 5) == 0 ||
           strncmp(dsv4_model_backend(model), "cuda (", 6) == 0);
  test_text(model);
  test_stops(model);
  test_sessions(model);
  test_rows(model);
  test_model_freed_first(model);
  dsv4_model_free(NULL);
  return 0;
}

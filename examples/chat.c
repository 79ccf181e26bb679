/* Asks a model one question and prints the answer as it comes. C99.
 *
 *   cc -std=c99 -I include chat.c -L lib -ldsv4 -o chat && LD_LIBRARY_PATH=lib ./chat models/tiny "What is the capital of France?"
 */
#include <dsv4.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TOKENS = 500 };

static dsv4_error error;

/* Every call returns a code; the error has a text for people. */
static void check(dsv4_code code) {
  if (code == DSV4_OK) return;
  fprintf(stderr, "chat: %s\n", error.message);
  exit(1);
}

static int32_t on_progress(int64_t layers_done, int64_t num_layers, void* user) {
  (void)user;
  fprintf(stderr, "\rlayer %lld of %lld%s", (long long)layers_done, (long long)num_layers,
          layers_done == num_layers ? "\n" : "");
  return 0; /* Another value ends the load. */
}

/* Deltas are parsed: the reasoning, the answer, tool calls, and at last why it stopped. */
static void on_delta(const dsv4_delta* delta, void* user) {
  (void)user;
  if (delta->kind == DSV4_CONTENT) fwrite(delta->text, 1, delta->text_size, stdout);
  if (delta->kind == DSV4_DONE) printf("\n(%s)\n", delta->text);
  fflush(stdout);
}

/* {"messages": [{"role": "user", "content": TEXT}], "thinking_mode": "chat"}; to be freed. */
static char* request_of(const char* text) {
  static const char before[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"";
  static const char behind[] = "\"}], \"thinking_mode\": \"chat\"}";
  char* request = (char*)malloc(sizeof(before) + 6 * strlen(text) + sizeof(behind));
  char* at;
  if (request == NULL) exit(1);
  at = request + sprintf(request, "%s", before);
  for (; *text != '\0'; ++text) {
    const unsigned char c = (unsigned char)*text;
    if (c < 0x20 || c == '"' || c == '\\')
      at += sprintf(at, "\\u%04x", c);
    else
      *at++ = (char)c;
  }
  strcpy(at, behind);
  return request;
}

int main(int argc, char** argv) {
  dsv4_model_options options;
  dsv4_sampling sampling;
  dsv4_model* model = NULL;
  dsv4_prompt* prompt = NULL;
  dsv4_session* session = NULL;
  dsv4_sampler* sampler = NULL;
  dsv4_parser* parser = NULL;
  const int32_t* ids;
  size_t num_ids;
  int32_t done = 0;
  int length = 0;
  char* request;
  if (argc < 3 || argc > 4) {
    fprintf(stderr, "usage: chat MODEL QUESTION [cpu|reference|cuda]\n");
    return 2;
  }
  if (dsv4_abi() != DSV4_ABI) {
    fprintf(stderr, "chat: the library has ABI %u, this program was compiled for %u\n", (unsigned)dsv4_abi(),
            (unsigned)DSV4_ABI);
    return 1;
  }
  dsv4_model_options_init(&options);
  options.path = argv[1];
  options.backend = argc == 4 ? argv[3] : NULL;
  options.on_progress = on_progress;
  check(dsv4_model_open(&options, &model, &error));

  request = request_of(argv[2]);
  check(dsv4_render(model, request, &prompt, &error));
  free(request);
  dsv4_sampling_init(&sampling);
  sampling.temperature = 0;
  check(dsv4_sampler_new(model, &sampling, prompt, &sampler, &error));
  check(dsv4_parser_new(model, prompt, NULL, 0, &parser, &error));
  check(dsv4_session_new(model, &session, &error));
  ids = dsv4_prompt_ids(prompt, &num_ids);
  check(dsv4_session_append(session, ids, num_ids, 0, &error));
  while (!done && length < MOST_TOKENS) {
    int32_t token;
    check(dsv4_sample(sampler, session, &token, &error));
    if (dsv4_model_is_stop(model, token)) break;
    check(dsv4_parser_feed(parser, &token, 1, on_delta, NULL, &done, &error));
    check(dsv4_session_append(session, &token, 1, 0, &error));
    ++length;
  }
  check(dsv4_parser_finish(parser, length == MOST_TOKENS, on_delta, NULL, &error));

  dsv4_parser_free(parser);
  dsv4_sampler_free(sampler);
  dsv4_session_free(session);
  dsv4_prompt_free(prompt);
  dsv4_model_free(model); /* Last: the others were made from it. */
  return 0;
}

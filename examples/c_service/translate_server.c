/* A translation server in C: a thread per connection, a line out for each line in.
 *
 *   translate_server BUNDLE PORT [TARGET]
 *
 * The server listens on 127.0.0.1; port 0 takes any free port, which is printed. Lines of all
 * connections share batches, since they are translated by one tt_translator. */

#define _POSIX_C_SOURCE 200809L
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <translate_trt/translate_trt.h>
#include <unistd.h>

typedef struct {
  const tt_translator* translator;
  int socket;
} connection;

/* Writes a translation, or "ERROR: " and the reason. */
static int answer(FILE* out, const tt_translator* translator, tt_text line) {
  tt_result* result = NULL;
  if (tt_translate(translator, &line, 1, NULL, NULL, &result) != TT_OK) {
    return fprintf(out, "ERROR: %s\n", tt_last_error());
  }
  const tt_text text = tt_result_text(result, 0, 0);
  const int written = fprintf(out, "%.*s\n", (int)text.size, text.data);
  tt_result_free(result);
  return written;
}

static void* serve(void* argument) {
  connection client = *(connection*)argument;
  free(argument);
  FILE* in = fdopen(client.socket, "r");
  FILE* out = fdopen(dup(client.socket), "w");
  char* line = NULL;
  size_t capacity = 0;
  ssize_t size;
  while (in && out && (size = getline(&line, &capacity, in)) >= 0) {
    if (size > 0 && line[size - 1] == '\n') --size;
    const tt_text text = {line, (size_t)size};
    if (answer(out, client.translator, text) < 0 || fflush(out) != 0) break;
  }
  free(line);
  if (out) fclose(out);
  if (in) {
    fclose(in);
  } else {
    close(client.socket);
  }
  return NULL;
}

/* Returns a socket that listens on the loopback interface, and prints its port; -1 if it fails. */
static int listen_on(unsigned short port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
  socklen_t size = sizeof address;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  if (listener < 0 || bind(listener, (struct sockaddr*)&address, size) != 0 ||
      listen(listener, 64) != 0 || getsockname(listener, (struct sockaddr*)&address, &size) != 0) {
    perror("translate_server");
    return -1;
  }
  printf("listening on 127.0.0.1:%d\n", ntohs(address.sin_port));
  fflush(stdout);
  return listener;
}

int main(int count, char** arguments) {
  if (count < 3 || count > 4) {
    fprintf(stderr, "usage: translate_server BUNDLE PORT [TARGET]\n");
    return 2;
  }
  tt_translator* translator = NULL;
  tt_load_options options;
  tt_load_options_default(&options, sizeof options);
  options.target = count > 3 ? arguments[3] : NULL;
  options.workers = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
  options.threads = 1;
  if (tt_translator_load(arguments[1], &options, &translator) != TT_OK) {
    fprintf(stderr, "translate_server: %s\n", tt_last_error());
    return 1;
  }
  signal(SIGPIPE, SIG_IGN); /* a client that has gone ends its own connection, not the server */
  const int listener = listen_on((unsigned short)strtoul(arguments[2], NULL, 10));
  if (listener < 0) return 1;
  for (;;) {
    connection* client = malloc(sizeof *client);
    pthread_t thread;
    if (client == NULL) return 1;
    client->translator = translator;
    client->socket = accept(listener, NULL, NULL);
    if (client->socket < 0) {
      free(client);
    } else if (pthread_create(&thread, NULL, serve, client) == 0) {
      pthread_detach(thread);
    } else {
      close(client->socket);
      free(client);
    }
  }
}

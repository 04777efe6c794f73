/* What a peer written in C offers to src/store/native.rs. Every call returns 0, or a code below. */
#ifndef PEER_H
#define PEER_H
#include <stddef.h>

enum { PEER_LOAD = 0, PEER_WRITE = 1, PEER_READ = 2 };
enum { PEER_OK = 0, PEER_ABSENT = 1, PEER_AGAIN = 2, PEER_FAILED = 3 };

/* Receives one row of a scan; 0 ends it. */
typedef int (*peer_row)(void *context, const void *key, size_t key_size, const void *value,
                        size_t value_size);

struct peer {
    /* Bytes of memory in all, and of log until a checkpoint is due. Large values have 64 KiB and more. */
    void *(*open)(const char *path, unsigned tables, int is_new, size_t memory, size_t held_back,
                  int has_large_values);
    /* Commits of a load are not durable one by one. */
    void *(*begin)(void *store, int purpose);
    int (*get)(void *store, void *transaction, unsigned table, int for_update, const void *key,
               size_t key_size, peer_row found, void *context);
    int (*put)(void *store, void *transaction, unsigned table, const void *key, size_t key_size,
               const void *value, size_t value_size);
    int (*del)(void *store, void *transaction, unsigned table, const void *key, size_t key_size);
    int (*scan)(void *store, void *transaction, unsigned table, const void *key, size_t key_size,
                peer_row each, void *context);
    int (*commit)(void *store, void *transaction);
    void (*abort)(void *store, void *transaction);
    int (*checkpoint)(void *store);
    int (*close)(void *store);
};

extern const struct peer peer_berkeley;
extern const struct peer peer_rocks;
#endif

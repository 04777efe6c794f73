/* RocksDB: transactions with locks, two write buffers in what may be held back, the rest of the memory
 * a cache; no compression (every engine here stores bytes as they are). Large values lie in blob files, whose
 * garbage is collected. A table is the first byte of a key. */
#include <rocksdb/c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "peer.h"

#define KEY_MAX 1024

struct store {
    rocksdb_transactiondb_t *db;
    rocksdb_options_t *options;
    rocksdb_readoptions_t *read;
    rocksdb_writeoptions_t *durable, *held_back;
    rocksdb_transaction_options_t *transaction;
};

static int failed(char *error) {
    if (!error) return PEER_OK;
    int again = strstr(error, "Deadlock") || strstr(error, "busy") || strstr(error, "TimedOut")
        || strstr(error, "timed out");
    if (!again) fprintf(stderr, "RocksDB: %s\n", error);
    rocksdb_free(error);
    return again ? PEER_AGAIN : PEER_FAILED;
}

static size_t prefixed(char *room, unsigned table, const void *key, size_t key_size) {
    room[0] = (char)table;
    memcpy(room + 1, key, key_size);
    return key_size + 1;
}

static void *store_open(const char *path, unsigned tables, int is_new, size_t memory,
                        size_t held_back, int has_large_values) {
    (void)tables;
    struct store *store = calloc(1, sizeof *store);
    if (!store) return NULL;
    rocksdb_options_t *options = store->options = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(options, is_new);
    rocksdb_options_set_compression(options, rocksdb_no_compression);
    rocksdb_options_set_write_buffer_size(options, held_back / 2);
    rocksdb_options_set_max_write_buffer_number(options, 2);
    rocksdb_options_set_enable_blob_files(options, has_large_values != 0);
    rocksdb_options_set_enable_blob_gc(options, has_large_values != 0);
    rocksdb_block_based_table_options_t *table = rocksdb_block_based_options_create();
    rocksdb_cache_t *cache = rocksdb_cache_create_lru(memory - held_back);
    rocksdb_block_based_options_set_block_cache(table, cache);
    rocksdb_block_based_options_set_filter_policy(table,
                                                  rocksdb_filterpolicy_create_bloom_full(10));
    rocksdb_options_set_block_based_table_factory(options, table);
    store->read = rocksdb_readoptions_create();
    store->durable = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_sync(store->durable, 1);
    store->held_back = rocksdb_writeoptions_create();
    store->transaction = rocksdb_transaction_options_create();
    rocksdb_transaction_options_set_deadlock_detect(store->transaction, 1);
    char *error = NULL;
    store->db = rocksdb_transactiondb_open(options, rocksdb_transactiondb_options_create(), path,
                                           &error);
    return failed(error) ? NULL : store;
}

static void *begin(void *handle, int purpose) {
    struct store *store = handle;
    return rocksdb_transaction_begin(store->db, purpose == PEER_LOAD ? store->held_back : store->durable,
                                     store->transaction, NULL);
}

static int get(void *handle, void *transaction, unsigned table, int for_update, const void *key,
               size_t key_size, peer_row found, void *context) {
    struct store *store = handle;
    char room[KEY_MAX + 1];
    size_t size = prefixed(room, table, key, key_size), value_size = 0;
    char *error = NULL;
    rocksdb_pinnableslice_t *slice = for_update
        ? rocksdb_transaction_get_pinned_for_update(transaction, store->read, room, size, 1, &error)
        : rocksdb_transaction_get_pinned(transaction, store->read, room, size, &error);
    if (error) return failed(error);
    const char *value = slice ? rocksdb_pinnableslice_value(slice, &value_size) : NULL;
    if (value) found(context, key, key_size, value, value_size);
    if (slice) rocksdb_pinnableslice_destroy(slice);
    return value ? PEER_OK : PEER_ABSENT;
}

static int put(void *handle, void *transaction, unsigned table, const void *key, size_t key_size,
               const void *value, size_t value_size) {
    (void)handle;
    char room[KEY_MAX + 1];
    size_t size = prefixed(room, table, key, key_size);
    char *error = NULL;
    rocksdb_transaction_put(transaction, room, size, value, value_size, &error);
    return failed(error);
}

static int del(void *handle, void *transaction, unsigned table, const void *key, size_t key_size) {
    (void)handle;
    char room[KEY_MAX + 1];
    size_t size = prefixed(room, table, key, key_size);
    char *error = NULL;
    rocksdb_transaction_delete(transaction, room, size, &error);
    return failed(error);
}

static int scan(void *handle, void *transaction, unsigned table, const void *key, size_t key_size,
                peer_row each, void *context) {
    struct store *store = handle;
    char room[KEY_MAX + 1];
    size_t size = prefixed(room, table, key, key_size), value_size;
    rocksdb_iterator_t *rows = rocksdb_transaction_create_iterator(transaction, store->read);
    for (rocksdb_iter_seek(rows, room, size); rocksdb_iter_valid(rows); rocksdb_iter_next(rows)) {
        const char *found = rocksdb_iter_key(rows, &size);
        if (found[0] != (char)table) break;
        const char *value = rocksdb_iter_value(rows, &value_size);
        if (!each(context, found + 1, size - 1, value, value_size)) break;
    }
    char *error = NULL;
    rocksdb_iter_get_error(rows, &error);
    rocksdb_iter_destroy(rows);
    return failed(error);
}

static int commit(void *handle, void *transaction) {
    (void)handle;
    char *error = NULL;
    rocksdb_transaction_commit(transaction, &error);
    rocksdb_transaction_destroy(transaction);
    return failed(error);
}

static void give_up(void *handle, void *transaction) {
    (void)handle;
    char *error = NULL;
    rocksdb_transaction_rollback(transaction, &error);
    failed(error);
    rocksdb_transaction_destroy(transaction);
}

static int checkpoint(void *handle) {
    struct store *store = handle;
    char *error = NULL;
    rocksdb_flushoptions_t *options = rocksdb_flushoptions_create();
    rocksdb_flushoptions_set_wait(options, 1);
    rocksdb_transactiondb_flush(store->db, options, &error);
    rocksdb_flushoptions_destroy(options);
    return failed(error);
}

static int store_close(void *handle) {
    struct store *store = handle;
    rocksdb_transactiondb_close(store->db);
    free(store);
    return PEER_OK;
}

const struct peer peer_rocks = {
    .open = store_open, .begin = begin, .get = get, .put = put, .del = del, .scan = scan,
    .commit = commit, .abort = give_up, .checkpoint = checkpoint, .close = store_close,
};

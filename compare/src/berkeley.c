/* Berkeley DB 5.3: one B-tree file a table, 4 KiB pages, all memory a cache, a checkpoint after as much log as
 * may be held back. */
#include <db.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "peer.h"

#define TABLES_MAX 8
#define LOG_SIZE_MAX (10u << 20)
#define LOCKS_MAX 20000u
#define CHECK_EVERY 64u
#define CHECK_BYTES (1u << 20)

struct store {
    DB_ENV *env;
    DB *tables[TABLES_MAX];
    unsigned count;
    u_int32_t checkpoint_kib;
    unsigned commits;
    size_t changed;
};

static int code(int error) {
    switch (error) {
    case 0: return PEER_OK;
    case DB_NOTFOUND: case DB_KEYEMPTY: return PEER_ABSENT;
    case DB_LOCK_DEADLOCK: case DB_LOCK_NOTGRANTED: return PEER_AGAIN;
    default: fprintf(stderr, "Berkeley DB: %s\n", db_strerror(error)); return PEER_FAILED;
    }
}

static DBT bytes(const void *data, size_t size) {
    DBT value;
    memset(&value, 0, sizeof value);
    value.data = (void *)data;
    value.size = (u_int32_t)size;
    return value;
}

static void *store_open(const char *path, unsigned tables, int is_new, size_t memory,
                        size_t held_back, int has_large_values) {
    (void)has_large_values;
    /* Locks lie beside the cache: a table of 20,000 of them would be larger than a small one. */
    u_int32_t locks = memory >> 11 < LOCKS_MAX ? (u_int32_t)(memory >> 11) : LOCKS_MAX;
    struct store *store = calloc(1, sizeof *store);
    u_int32_t flags = DB_CREATE | DB_INIT_TXN | DB_INIT_LOCK | DB_INIT_LOG | DB_INIT_MPOOL
        | DB_THREAD | DB_PRIVATE | (is_new ? 0 : DB_RECOVER);
    if (!store || tables > TABLES_MAX || db_env_create(&store->env, 0)) return NULL;
    store->count = tables;
    store->checkpoint_kib = (u_int32_t)(held_back >> 10);
    store->env->set_cachesize(store->env, 0, (u_int32_t)memory, 1);
    store->env->set_lg_max(store->env, held_back < LOG_SIZE_MAX ? (u_int32_t)held_back : LOG_SIZE_MAX);
    store->env->set_lk_detect(store->env, DB_LOCK_YOUNGEST);
    store->env->set_lk_max_locks(store->env, locks);
    store->env->set_lk_max_objects(store->env, locks);
    store->env->log_set_config(store->env, DB_LOG_AUTO_REMOVE, 1);
    /* Written in advance, so that a commit need not tell the file system of a longer file. */
    store->env->log_set_config(store->env, DB_LOG_ZERO, 1);
    if (code(store->env->open(store->env, path, flags, 0644))) return NULL;
    for (unsigned table = 0; table < tables; table++) {
        char name[16];
        snprintf(name, sizeof name, "t%u.db", table);
        DB *db;
        if (db_create(&db, store->env, 0)) return NULL;
        db->set_pagesize(db, 4096);
        if (code(db->open(db, NULL, name, NULL, DB_BTREE, DB_CREATE | DB_AUTO_COMMIT | DB_THREAD,
                          0644)))
            return NULL;
        store->tables[table] = db;
    }
    return store;
}

static void *begin(void *handle, int purpose) {
    struct store *store = handle;
    DB_TXN *transaction = NULL;
    /* A reader that kept its locks would run out of them in a long scan. */
    u_int32_t flags = purpose == PEER_READ ? DB_READ_COMMITTED
        : purpose == PEER_WRITE ? DB_TXN_SYNC : DB_TXN_NOSYNC;
    return code(store->env->txn_begin(store->env, NULL, &transaction, flags)) ? NULL : transaction;
}

static int get(void *handle, void *transaction, unsigned table, int for_update, const void *key,
               size_t key_size, peer_row found, void *context) {
    struct store *store = handle;
    char room[4096];
    DBT wanted = bytes(key, key_size), value = bytes(room, 0);
    value.ulen = sizeof room;
    value.flags = DB_DBT_USERMEM;
    DB *db = store->tables[table];
    int error = db->get(db, transaction, &wanted, &value, for_update ? DB_RMW : 0);
    void *large = error == DB_BUFFER_SMALL ? malloc(value.size) : NULL;
    if (large) {
        value.data = large;
        value.ulen = value.size;
        error = db->get(db, transaction, &wanted, &value, for_update ? DB_RMW : 0);
    }
    if (!error) found(context, key, key_size, value.data, value.size);
    free(large);
    return code(error);
}

static int put(void *handle, void *transaction, unsigned table, const void *key, size_t key_size,
               const void *value, size_t value_size) {
    struct store *store = handle;
    DBT wanted = bytes(key, key_size), content = bytes(value, value_size);
    DB *db = store->tables[table];
    __atomic_add_fetch(&store->changed, value_size, __ATOMIC_RELAXED);
    return code(db->put(db, transaction, &wanted, &content, 0));
}

static int del(void *handle, void *transaction, unsigned table, const void *key, size_t key_size) {
    struct store *store = handle;
    DBT wanted = bytes(key, key_size);
    DB *db = store->tables[table];
    return code(db->del(db, transaction, &wanted, 0));
}

/* Gives the value more room when it is too small; the cursor has not moved then. */
static int row(DBC *cursor, DBT *key, DBT *value, u_int32_t which) {
    int error = cursor->get(cursor, key, value, which);
    if (error != DB_BUFFER_SMALL) return error;
    void *larger = realloc(value->data, value->size);
    if (!larger) return error;
    value->data = larger;
    value->ulen = value->size;
    return cursor->get(cursor, key, value, which);
}

static int scan(void *handle, void *transaction, unsigned table, const void *key, size_t key_size,
                peer_row each, void *context) {
    struct store *store = handle;
    DB *db = store->tables[table];
    DBC *cursor;
    int error = db->cursor(db, transaction, &cursor, 0);
    if (error) return code(error);
    /* Large enough for the longest key, and both are copied here: no allocation a row. */
    char key_room[1024];
    memcpy(key_room, key, key_size);
    DBT wanted = bytes(key_room, key_size), value = bytes(malloc(4096), 0);
    wanted.ulen = sizeof key_room;
    value.ulen = value.data ? 4096 : 0;
    wanted.flags = value.flags = DB_DBT_USERMEM;
    error = row(cursor, &wanted, &value, DB_SET_RANGE);
    while (!error && each(context, wanted.data, wanted.size, value.data, value.size))
        error = row(cursor, &wanted, &value, DB_NEXT);
    free(value.data);
    cursor->close(cursor);
    return error == DB_NOTFOUND ? PEER_OK : code(error);
}

/* After so many commits, or so many bytes. */
static int may_need_checkpoint(struct store *store) {
    int is_due = __atomic_add_fetch(&store->commits, 1, __ATOMIC_RELAXED) % CHECK_EVERY == 0
        || __atomic_load_n(&store->changed, __ATOMIC_RELAXED) >= CHECK_BYTES;
    if (is_due) __atomic_store_n(&store->changed, 0, __ATOMIC_RELAXED);
    return is_due;
}

static int commit(void *handle, void *transaction) {
    struct store *store = handle;
    DB_TXN *txn = transaction;
    int error = txn->commit(txn, 0);
    if (!error && may_need_checkpoint(store))
        error = store->env->txn_checkpoint(store->env, store->checkpoint_kib, 0, 0);
    return code(error);
}

static void give_up(void *handle, void *transaction) {
    (void)handle;
    DB_TXN *txn = transaction;
    txn->abort(txn);
}

static int checkpoint(void *handle) {
    struct store *store = handle;
    return code(store->env->txn_checkpoint(store->env, 0, 0, DB_FORCE));
}

static int store_close(void *handle) {
    struct store *store = handle;
    int error = store->env->txn_checkpoint(store->env, 0, 0, DB_FORCE);
    for (unsigned table = 0; table < store->count; table++) {
        int closed = store->tables[table]->close(store->tables[table], 0);
        if (!error) error = closed;
    }
    int closed = store->env->close(store->env, 0);
    free(store);
    return code(error ? error : closed);
}

const struct peer peer_berkeley = {
    .open = store_open, .begin = begin, .get = get, .put = put, .del = del, .scan = scan,
    .commit = commit, .abort = give_up, .checkpoint = checkpoint, .close = store_close,
};

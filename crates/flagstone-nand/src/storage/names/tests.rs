use super::*;

#[test]
#[cfg(target_os = "linux")]
fn a_name_is_durable_where_directories_can_be_synced() {
    let directory = tempfile::tempdir().unwrap();
    sync_name(&directory.path().join("file")).unwrap();
    sync_name(Path::new("file")).unwrap();
    // Its directories know no sync.
    sync_name(Path::new("/proc/self/file")).unwrap();
    let error = sync_name(&directory.path().join("none/file")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

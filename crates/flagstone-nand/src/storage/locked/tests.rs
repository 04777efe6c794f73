use std::io::Error;

use super::super::EIO;
use super::*;

/// Goal: where the file system locks nothing, a file is opened only on the caller's word, and a locked
/// file on nobody's. Method: the error numbers of such file systems.
#[test]
fn a_file_system_without_locks_is_named() {
    for errno in [ENOLCK, rustix::io::Errno::OPNOTSUPP.raw_os_error()] {
        let refused = || Err(TryLockError::Error(Error::from_raw_os_error(errno)));
        let error = judge_lock(refused(), FileLock::Required).unwrap_err();
        assert_eq!(error, OpenDeviceError::NoLocks { errno });
        assert!(error.to_string().contains("file_lock=where-possible"), "{error}");
        assert_eq!(judge_lock(refused(), FileLock::WherePossible), Ok(()));
    }
    for lock in [FileLock::Required, FileLock::WherePossible] {
        let locked = judge_lock(Err(TryLockError::WouldBlock), lock);
        assert_eq!(locked, Err(OpenDeviceError::Locked));
        let failed = Err(TryLockError::Error(Error::from_raw_os_error(EIO)));
        assert_eq!(judge_lock(failed, lock), Err(OpenDeviceError::Io { errno: EIO }));
    }
}

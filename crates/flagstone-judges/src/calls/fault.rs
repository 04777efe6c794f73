//! The system calls that may fail, and the ways in which each may.

use nix::libc;

use super::tracer::Place;

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// With this number.
    Errno(i32),
    /// A sync fails with this number, and the kernel drops the written data.
    Dropped(i32),
    /// It reads or writes half of the bytes asked for.
    Short,
}

/// A call that concerns a file.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    /// Its file, in the directory.
    pub(crate) path: String,
    pub(crate) arguments: [u64; 5],
}

/// Name of a call by its number, and the place where it names its file.
pub(crate) fn call_of(number: i64) -> Option<(&'static str, Place)> {
    use Place::{At, Descriptor, Path};
    Some(match number {
        libc::SYS_read => ("read", Descriptor),
        libc::SYS_write => ("write", Descriptor),
        libc::SYS_pread64 => ("pread64", Descriptor),
        libc::SYS_pwrite64 => ("pwrite64", Descriptor),
        libc::SYS_readv => ("readv", Descriptor),
        libc::SYS_preadv => ("preadv", Descriptor),
        libc::SYS_fsync => ("fsync", Descriptor),
        libc::SYS_fdatasync => ("fdatasync", Descriptor),
        libc::SYS_sync_file_range => ("sync_file_range", Descriptor),
        libc::SYS_ftruncate => ("ftruncate", Descriptor),
        libc::SYS_fallocate => ("fallocate", Descriptor),
        libc::SYS_flock => ("flock", Descriptor),
        libc::SYS_fcntl => ("fcntl", Descriptor),
        libc::SYS_fstat => ("fstat", Descriptor),
        libc::SYS_lseek => ("lseek", Descriptor),
        libc::SYS_fadvise64 => ("fadvise64", Descriptor),
        libc::SYS_getdents64 => ("getdents64", Descriptor),
        libc::SYS_ioctl => ("ioctl", Descriptor),
        libc::SYS_fstatfs => ("fstatfs", Descriptor),
        libc::SYS_fchmod => ("fchmod", Descriptor),
        libc::SYS_copy_file_range => ("copy_file_range", Descriptor),
        libc::SYS_openat => ("openat", At),
        libc::SYS_statx => ("statx", At),
        libc::SYS_newfstatat => ("newfstatat", At),
        libc::SYS_unlinkat => ("unlinkat", At),
        libc::SYS_mkdirat => ("mkdirat", At),
        libc::SYS_renameat => ("renameat", At),
        libc::SYS_renameat2 => ("renameat2", At),
        libc::SYS_linkat => ("linkat", At),
        libc::SYS_readlinkat => ("readlinkat", At),
        libc::SYS_faccessat => ("faccessat", At),
        libc::SYS_fchmodat => ("fchmodat", At),
        libc::SYS_statfs => ("statfs", Path),
        libc::SYS_truncate => ("truncate", Path),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open => ("open", Path),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_stat => ("stat", Path),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_lstat => ("lstat", Path),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_access => ("access", Path),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_unlink => ("unlink", Path),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_rename => ("rename", Path),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_mkdir => ("mkdir", Path),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_link => ("link", Path),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_readlink => ("readlink", Path),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_chmod => ("chmod", Path),
        _ => return None,
    })
}

impl Call {
    pub(crate) fn is_write(&self) -> bool {
        matches!(self.name, "write" | "pwrite64")
    }

    pub(crate) fn is_sync(&self) -> bool {
        matches!(self.name, "fsync" | "fdatasync")
    }

    fn creates(&self) -> bool {
        let flags = match self.name {
            "openat" => self.arguments[2],
            "open" => self.arguments[1],
            _ => 0,
        };
        flags & libc::O_CREAT as u64 != 0
    }

    /// Flags of a descriptor are asked for by the standard library alone.
    pub(crate) fn is_left_out(&self) -> bool {
        self.name == "fcntl" && self.arguments[1] == libc::F_GETFD as u64
    }

    /// Every way in which it may fail, once.
    pub(crate) fn faults(&self) -> Vec<Fault> {
        use libc::{
            EACCES, EDQUOT, EINTR, EINVAL, EIO, EMFILE, ENOLCK, ENOMEM, ENOSPC, EOPNOTSUPP, EROFS,
        };
        let errors: &[i32] = match self.name {
            "openat" | "open" if self.creates() => &[EIO, ENOSPC, EDQUOT, EMFILE, EACCES],
            "openat" | "open" => &[EIO, EMFILE, EACCES],
            "read" | "pread64" | "readv" | "preadv" => &[EIO, EINTR],
            "write" | "pwrite64" => &[EIO, ENOSPC, EDQUOT, EINTR],
            "fsync" | "fdatasync" => &[EIO, ENOSPC, EDQUOT],
            "ftruncate" | "truncate" | "mkdir" | "mkdirat" | "link" | "linkat" | "rename" => {
                &[EIO, ENOSPC, EDQUOT]
            }
            "fallocate" => &[EIO, ENOSPC, EDQUOT, EOPNOTSUPP, EINTR],
            "renameat2" => &[EIO, ENOSPC, EDQUOT, EINVAL],
            "unlink" | "unlinkat" => &[EIO, EROFS],
            "statx" | "stat" | "lstat" | "fstat" | "newfstatat" => &[EIO, EACCES, ENOMEM],
            "flock" | "fcntl" => &[EIO, ENOLCK, EINTR],
            _ => &[EIO],
        };
        let mut faults: Vec<_> = errors.iter().map(|errno| Fault::Errno(*errno)).collect();
        if self.is_sync() {
            faults.extend([Fault::Dropped(EIO), Fault::Dropped(ENOSPC)]);
        }
        if self.is_write() || matches!(self.name, "read" | "pread64") {
            faults.push(Fault::Short);
        }
        faults
    }

    /// Ways in which it and all later ones of its name may fail.
    pub(crate) fn lasting_faults(&self) -> Vec<Fault> {
        let is_lasting = |fault: &Fault| {
            matches!(fault, Fault::Errno(libc::EIO | libc::ENOSPC) | Fault::Dropped(libc::EIO))
                || (*fault == Fault::Short && self.is_write())
        };
        self.faults().into_iter().filter(is_lasting).collect()
    }
}

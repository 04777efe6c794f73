//! The recorder: follows the system calls of a process with `ptrace`, without its help.
//!
//! - **T1** Only marks are taken from the process itself: files are known by their inodes, as `/proc` shows them at
//!   the moment of each call.
//! - **T2** The content of the directory when the recording begins is durable.
//! - **T3** A call that could change a recorded file and that the record cannot express ends the recording with an
//!   error: no state is judged on an incomplete record.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::record::{Event, FileNumber};

/// A system call as it began.
#[derive(Clone, Copy, Debug)]
struct Call {
    number: i64,
    arguments: [u64; 6],
}

/// The note to make when a call returns.
#[derive(Debug)]
enum Waiting {
    /// An event that is noted already.
    Noted(u64),
    /// A change of names, to be noted at the return.
    Names(Event),
    /// A file that may be new.
    Opened {
        name: String,
        was_there: bool,
    },
    Synced {
        file: Option<FileNumber>,
        begun: u64,
    },
    /// Nothing of interest.
    Other,
}

/// Follows one process and its threads.
struct Tracer<'a> {
    directory: &'a Path,
    ledger: &'a Path,
    events: Vec<Event>,
    numbers: HashMap<(u64, u64), FileNumber>,
    file_count: FileNumber,
    waiting: HashMap<Pid, Waiting>,
}

/// Runs `command`, which waits for the end of its standard input before it touches a file, and records its changes to
/// the files of `directory`. Its marks are the lines that it writes to the file `ledger`, one a call.
///
/// # Errors
/// `ptrace` is refused here; the process failed; it made a call that no record can express (T3).
pub(super) fn record(
    command: &mut Command,
    directory: &Path,
    ledger: &Path,
) -> anyhow::Result<Vec<Event>> {
    let mut child = command.stdin(Stdio::piped()).spawn().context("the workload does not start")?;
    let main = Pid::from_raw(i32::try_from(child.id())?);
    let options = Options::PTRACE_O_TRACESYSGOOD
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_EXITKILL;
    let seized = ptrace::seize(main, options).and_then(|()| ptrace::interrupt(main));
    if let Err(error) = seized {
        let _ = child.kill();
        let _ = child.wait();
        return Err(error).context("ptrace is refused here");
    }
    let mut tracer = Tracer {
        directory,
        ledger,
        events: Vec::new(),
        numbers: HashMap::new(),
        file_count: 0,
        waiting: HashMap::new(),
    };
    tracer.begin()?;
    // Its first stop comes before it reads on.
    drop(child.stdin.take());
    let followed = tracer.follow(main);
    if followed.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    followed?;
    Ok(tracer.events)
}

impl Tracer<'_> {
    /// The files that are there already are durable.
    fn begin(&mut self) -> anyhow::Result<()> {
        for entry in fs::read_dir(self.directory)? {
            let entry = entry?;
            let (name, bytes) = (entry.file_name(), fs::read(entry.path())?);
            let file = self.number(&entry.metadata()?);
            let name = name.to_string_lossy().into_owned();
            self.events.push(Event::Standing { name, file, bytes });
        }
        Ok(())
    }

    /// Gives a file a number.
    fn number(&mut self, found: &fs::Metadata) -> FileNumber {
        self.file_count += 1;
        self.numbers.insert((found.dev(), found.ino()), self.file_count);
        self.file_count
    }

    fn follow(&mut self, main: Pid) -> anyhow::Result<()> {
        loop {
            // Of this thread alone: others may have children of their own.
            let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
            let status = match waitpid(Pid::from_raw(-1), Some(flags)) {
                Err(Errno::EINTR) => continue,
                status => status.context("waiting for the workload")?,
            };
            match status {
                WaitStatus::Exited(pid, code) if pid == main => {
                    ensure!(code == 0, "the workload ended with exit code {code}");
                    return Ok(());
                }
                WaitStatus::Signaled(pid, signal, _) if pid == main => {
                    bail!("the workload was ended by {signal}");
                }
                WaitStatus::PtraceSyscall(thread) => {
                    self.syscall(thread).with_context(|| format!("thread {thread}"))?;
                    go_on(thread, None)?;
                }
                WaitStatus::Stopped(thread, signal) => go_on(thread, Some(signal))?,
                WaitStatus::PtraceEvent(thread, ..) => go_on(thread, None)?,
                _ => {}
            }
        }
    }

    /// A thread stands before a call or behind it.
    fn syscall(&mut self, thread: Pid) -> anyhow::Result<()> {
        // A thread that is being killed is not there any more.
        let Ok(registers) = ptrace::getregs(thread) else { return Ok(()) };
        if let Some(waiting) = self.waiting.remove(&thread) {
            return self.returned(waiting, result_of(&registers));
        }
        let call = call_of(&registers);
        let waiting = self.begun(thread, &call).with_context(|| format!("{call:?}"))?;
        self.waiting.insert(thread, waiting);
        Ok(())
    }

    /// Notes the request of a call.
    fn begun(&mut self, thread: Pid, call: &Call) -> anyhow::Result<Waiting> {
        let [first, second, third, fourth, fifth, _] = call.arguments;
        match call.number {
            libc::SYS_write | libc::SYS_pwrite64 => {
                if self.is_ledger(thread, first)? {
                    let text = String::from_utf8(memory(thread, second, third)?)?;
                    self.events.push(Event::Mark(text.trim_end().to_owned()));
                    return Ok(Waiting::Other);
                }
                let Some(file) = self.file_of(thread, first)? else { return Ok(Waiting::Other) };
                let offset = match call.number {
                    libc::SYS_write => position(thread, first)?,
                    _ => fourth,
                };
                let bytes = memory(thread, second, third)?;
                Ok(self.note(Event::Write { file, offset, bytes }))
            }
            libc::SYS_ftruncate => {
                let Some(file) = self.file_of(thread, first)? else { return Ok(Waiting::Other) };
                Ok(self.note(Event::Resize { file, size: second }))
            }
            libc::SYS_fallocate => {
                let Some(file) = self.file_of(thread, first)? else { return Ok(Waiting::Other) };
                Ok(self.note(allocation(file, second, third, fourth)?))
            }
            libc::SYS_fsync | libc::SYS_fdatasync => self.sync_begun(thread, first),
            libc::SYS_openat => self.open_begun(thread, first, second, third),
            libc::SYS_renameat | libc::SYS_renameat2 => {
                let (from, to) =
                    (self.name_at(thread, first, second)?, self.name_at(thread, third, fourth)?);
                self.renamed(from, to)
            }
            libc::SYS_unlinkat => {
                let name = self.name_at(thread, first, second)?;
                Ok(name.map_or(Waiting::Other, |name| Waiting::Names(Event::Unlink { name })))
            }
            libc::SYS_linkat => {
                let (from, to) =
                    (self.name_at(thread, first, second)?, self.name_at(thread, third, fourth)?);
                ensure!(from.is_none() && to.is_none(), "a hard link cannot be recorded");
                Ok(Waiting::Other)
            }
            libc::SYS_mmap => {
                let writes = third & libc::PROT_WRITE as u64 != 0
                    && fourth & libc::MAP_TYPE as u64 != libc::MAP_PRIVATE as u64;
                let is_file = fourth & libc::MAP_ANONYMOUS as u64 == 0;
                if writes && is_file && self.file_of(thread, fifth)?.is_some() {
                    bail!("a mapping that is written to cannot be recorded");
                }
                Ok(Waiting::Other)
            }
            number => self.other_begun(thread, number, call),
        }
    }

    /// Calls that the record cannot express, and older forms of calls that it can (T3).
    fn other_begun(&mut self, thread: Pid, number: i64, call: &Call) -> anyhow::Result<Waiting> {
        const TO_FIRST: [i64; 4] =
            [libc::SYS_writev, libc::SYS_pwritev, libc::SYS_pwritev2, libc::SYS_sendfile];
        let [first, second, third, ..] = call.arguments;
        let target = match number {
            number if TO_FIRST.contains(&number) => first,
            libc::SYS_copy_file_range | libc::SYS_splice => third,
            libc::SYS_io_uring_setup => bail!("io_uring cannot be recorded"),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_rename => {
                let here = libc::AT_FDCWD as u64;
                let (from, to) =
                    (self.name_at(thread, here, first)?, self.name_at(thread, here, second)?);
                return self.renamed(from, to);
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_unlink => {
                let name = self.name_at(thread, libc::AT_FDCWD as u64, first)?;
                return Ok(
                    name.map_or(Waiting::Other, |name| Waiting::Names(Event::Unlink { name }))
                );
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open | libc::SYS_creat | libc::SYS_link | libc::SYS_truncate => {
                let name = self.name_at(thread, libc::AT_FDCWD as u64, first)?;
                ensure!(name.is_none(), "an old form of a call cannot be recorded");
                return Ok(Waiting::Other);
            }
            _ => return Ok(Waiting::Other),
        };
        let _ = second;
        ensure!(self.file_of(thread, target)?.is_none(), "this call cannot be recorded");
        Ok(Waiting::Other)
    }

    fn renamed(&self, from: Option<String>, to: Option<String>) -> anyhow::Result<Waiting> {
        match (from, to) {
            (Some(from), Some(to)) => Ok(Waiting::Names(Event::Rename { from, to })),
            (None, None) => Ok(Waiting::Other),
            _ => bail!("a rename out of the directory, or into it, cannot be recorded"),
        }
    }

    fn sync_begun(&mut self, thread: Pid, descriptor: u64) -> anyhow::Result<Waiting> {
        let begun = self.events.len() as u64;
        if descriptor_path(thread, descriptor)? == self.directory {
            return Ok(Waiting::Synced { file: None, begun });
        }
        let file = self.file_of(thread, descriptor)?;
        Ok(file.map_or(Waiting::Other, |file| Waiting::Synced { file: Some(file), begun }))
    }

    fn open_begun(
        &mut self,
        thread: Pid,
        directory: u64,
        path: u64,
        flags: u64,
    ) -> anyhow::Result<Waiting> {
        let Some(name) = self.name_at(thread, directory, path)? else { return Ok(Waiting::Other) };
        let writes = flags & libc::O_ACCMODE as u64 != libc::O_RDONLY as u64;
        let synced = flags & libc::O_DSYNC as u64 != 0;
        ensure!(!(writes && synced), "writes that sync cannot be recorded");
        let was_there = self.directory.join(&name).symlink_metadata().is_ok();
        let truncates = flags & libc::O_TRUNC as u64 != 0;
        ensure!(!(was_there && truncates), "an opening that truncates cannot be recorded");
        Ok(Waiting::Opened { name, was_there })
    }

    fn note(&mut self, event: Event) -> Waiting {
        self.events.push(event);
        Waiting::Noted(self.events.len() as u64 - 1)
    }

    /// Notes the result of a call.
    fn returned(&mut self, waiting: Waiting, result: i64) -> anyhow::Result<()> {
        let failed = result < 0;
        match waiting {
            Waiting::Noted(event) => {
                let noted = &mut self.events[usize::try_from(event)?];
                if failed {
                    *noted = Event::Nothing;
                } else if let Event::Write { bytes, .. } = noted {
                    bytes.truncate(usize::try_from(result)?);
                }
                self.events.push(Event::Ended { event });
            }
            Waiting::Names(event) if !failed => self.events.push(event),
            Waiting::Opened { name, was_there } if !failed && !was_there => {
                let found = self.directory.join(&name).metadata()?;
                let file = self.number(&found);
                self.events.push(Event::Link { name, file });
            }
            Waiting::Synced { file, begun } if !failed => {
                self.events.push(match file {
                    Some(file) => Event::Synced { file, begun },
                    None => Event::NamesSynced { begun },
                });
            }
            _ => {}
        }
        Ok(())
    }

    /// Number of a recorded file that is open; none for anything else.
    fn file_of(&self, thread: Pid, descriptor: u64) -> anyhow::Result<Option<FileNumber>> {
        // A descriptor that is not open makes the call fail.
        let Ok(found) = fs::metadata(descriptor_link(thread, descriptor)) else { return Ok(None) };
        Ok(self.numbers.get(&(found.dev(), found.ino())).copied())
    }

    fn is_ledger(&self, thread: Pid, descriptor: u64) -> anyhow::Result<bool> {
        Ok(descriptor_path(thread, descriptor)? == self.ledger)
    }

    /// Name in the directory of a path of the process; none when it lies elsewhere.
    fn name_at(&self, thread: Pid, at: u64, path: u64) -> anyhow::Result<Option<String>> {
        let path = PathBuf::from(text(thread, path)?);
        let path = match at as i32 {
            libc::AT_FDCWD => fs::read_link(format!("/proc/{thread}/cwd"))?.join(path),
            _ => descriptor_path(thread, at)?.join(path),
        };
        let is_inside = path.parent() == Some(self.directory);
        let name = path.file_name().filter(|_| is_inside);
        Ok(name.map(|name| name.to_string_lossy().into_owned()))
    }
}

/// Lets a thread run to its next stop, with a pending signal.
fn go_on(thread: Pid, signal: Option<Signal>) -> anyhow::Result<()> {
    match ptrace::syscall(thread, signal) {
        // It is being killed, or has ended.
        Err(Errno::ESRCH) => Ok(()),
        result => result.context("the workload does not go on"),
    }
}

#[cfg(target_arch = "x86_64")]
fn call_of(registers: &libc::user_regs_struct) -> Call {
    let r = registers;
    Call { number: r.orig_rax as i64, arguments: [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] }
}

#[cfg(target_arch = "x86_64")]
fn result_of(registers: &libc::user_regs_struct) -> i64 {
    registers.rax as i64
}

#[cfg(target_arch = "aarch64")]
fn call_of(registers: &libc::user_regs_struct) -> Call {
    let [a, b, c, d, e, f, ..] = registers.regs;
    Call { number: registers.regs[8] as i64, arguments: [a, b, c, d, e, f] }
}

#[cfg(target_arch = "aarch64")]
fn result_of(registers: &libc::user_regs_struct) -> i64 {
    registers.regs[0] as i64
}

fn allocation(file: FileNumber, mode: u64, offset: u64, size: u64) -> anyhow::Result<Event> {
    const PUNCH: u64 = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u64;
    match mode {
        0 => Ok(Event::Reserve { file, size: offset + size }),
        PUNCH => Ok(Event::Punch { file, offset, size }),
        _ => bail!("an allocation of mode {mode} cannot be recorded"),
    }
}

fn descriptor_link(thread: Pid, descriptor: u64) -> PathBuf {
    PathBuf::from(format!("/proc/{thread}/fd/{}", descriptor as i32))
}

fn descriptor_path(thread: Pid, descriptor: u64) -> anyhow::Result<PathBuf> {
    Ok(fs::read_link(descriptor_link(thread, descriptor)).unwrap_or_default())
}

/// Position of a descriptor that is written to without an offset.
fn position(thread: Pid, descriptor: u64) -> anyhow::Result<u64> {
    let info = fs::read_to_string(format!("/proc/{thread}/fdinfo/{}", descriptor as i32))?;
    let field = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
    };
    let flags = i32::from_str_radix(&field("flags:").context("no flags")?, 8)?;
    ensure!(flags & libc::O_APPEND == 0, "writes behind the end cannot be recorded");
    Ok(field("pos:").context("no position")?.parse()?)
}

/// Bytes of the process.
fn memory(thread: Pid, address: u64, size: u64) -> anyhow::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(size)?];
    File::open(format!("/proc/{thread}/mem"))?.read_exact_at(&mut bytes, address)?;
    Ok(bytes)
}

/// A string of the process, which ends with a zero.
fn text(thread: Pid, address: u64) -> anyhow::Result<String> {
    let memory = File::open(format!("/proc/{thread}/mem"))?;
    let mut bytes = Vec::new();
    loop {
        let mut chunk = [0; 64];
        let at = address + bytes.len() as u64;
        // Not across the end of a page, behind which there may be nothing.
        let size = 64.min(4096 - (at % 4096) as usize);
        let read = memory.read_at(&mut chunk[..size], at)?;
        ensure!(read > 0, "a path ends in nothing");
        let end = chunk[..read].iter().position(|byte| *byte == 0);
        bytes.extend_from_slice(&chunk[..end.unwrap_or(read)]);
        if end.is_some() {
            return Ok(String::from_utf8(bytes)?);
        }
    }
}

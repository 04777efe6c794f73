//! System calls of a process, followed by `ptrace` without its help: one of them is made to fail.
//!
//! Only calls that concern files of one directory are counted. A failing call is not made at all. Where the kernel is
//! to drop the writes of a failing sync, the writes since the last sync are taken back. A short read or write is
//! really made, of fewer bytes.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::fault::{Call, Fault};
use crate::kills::said::Said;
use crate::patience::Patience;

/// The call that fails, and its failure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Aim {
    /// Number of the call.
    pub(crate) index: usize,
    pub(crate) fault: Fault,
    /// Whether all later ones of its name fail, too.
    pub(crate) lasts: bool,
}

/// Result of a process.
#[derive(Debug)]
pub(crate) struct Traced {
    pub(crate) calls: Vec<Call>,
    pub(crate) is_hit: bool,
    pub(crate) end: Result<(), String>,
    pub(crate) said: Vec<Said>,
}

/// Processor time that a process may take, in seconds.
const TIME_MAX: u64 = 60;

/// A stretch of time after which a process that has not ended is looked at.
const LOOK_AFTER: Duration = Duration::from_secs(20);

/// A process that is followed.
struct Tracer<'a> {
    directory: &'a Path,
    aim: Option<Aim>,
    aimed_name: Option<&'static str>,
    pid: Pid,
    calls: Vec<Call>,
    is_hit: bool,
    /// Result to give to the call under way, or the file that it syncs.
    pending: Option<Pending>,
    /// Bytes that writes replaced since the last sync of their file.
    undo: HashMap<PathBuf, Vec<(u64, Vec<u8>)>>,
}

enum Pending {
    Returns(i32),
    Syncs(PathBuf),
    Other,
}

/// Runs `command`, which waits for the end of its standard input before it touches a file.
///
/// # Errors
/// `ptrace` is refused here.
pub(crate) fn run(
    command: &mut Command,
    directory: &Path,
    aim: Option<Aim>,
) -> anyhow::Result<Traced> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let pid = Pid::from_raw(i32::try_from(child.id())?);
    let options = Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_EXITKILL;
    if let Err(error) = ptrace::seize(pid, options).and_then(|()| ptrace::interrupt(pid)) {
        let _ = child.kill();
        let _ = child.wait();
        return Err(error).context("ptrace is refused here");
    }
    let mut pipe = std::io::BufReader::new(child.stdout.take().context("its output")?);
    let listener = std::thread::spawn(move || {
        let mut said = Vec::new();
        while let Some(next) = Said::read(&mut pipe).transpose() {
            said.push(next?);
        }
        anyhow::Ok(said)
    });
    let watch = watch(pid);
    drop(child.stdin.take());
    let mut tracer = Tracer {
        directory,
        aim,
        aimed_name: None,
        pid,
        calls: Vec::new(),
        is_hit: false,
        pending: None,
        undo: HashMap::new(),
    };
    let end = tracer.follow();
    drop(watch);
    reap(&mut child, &end);
    let said = listener.join().map_err(|_| anyhow::anyhow!("the listener panicked"))??;
    Ok(Traced { calls: tracer.calls, is_hit: tracer.is_hit, end: end?, said })
}

/// Ends a process that nobody traces any more.
fn reap(child: &mut Child, end: &anyhow::Result<Result<(), String>>) {
    if end.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Kills a process that hangs, unless the returned sender is dropped before.
fn watch(pid: Pid) -> Sender<()> {
    let (sender, receiver) = channel::<()>();
    std::thread::spawn(move || {
        use std::sync::mpsc::RecvTimeoutError::Timeout;
        let mut patience = Patience::with(pid.as_raw().unsigned_abs(), TIME_MAX);
        while receiver.recv_timeout(LOOK_AFTER) == Err(Timeout) {
            if patience.is_over() {
                let _ = kill(pid, Signal::SIGKILL);
                break;
            }
        }
    });
    sender
}

impl Tracer<'_> {
    fn follow(&mut self) -> anyhow::Result<Result<(), String>> {
        loop {
            let status = match waitpid(self.pid, Some(WaitPidFlag::__WALL)) {
                Err(Errno::EINTR) => continue,
                status => status.context("waiting for the process")?,
            };
            let signal = match status {
                WaitStatus::Exited(_, 0) => return Ok(Ok(())),
                WaitStatus::Exited(_, code) => return Ok(Err(format!("exit code {code}"))),
                WaitStatus::Signaled(_, signal, _) => {
                    return Ok(Err(format!("ended by {signal}, perhaps because it hung")));
                }
                WaitStatus::PtraceSyscall(_) => {
                    self.stop()?;
                    None
                }
                WaitStatus::Stopped(_, signal) => Some(signal),
                _ => None,
            };
            match ptrace::syscall(self.pid, signal) {
                // It is being killed.
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(error) => return Err(error).context("going on"),
            }
        }
    }

    /// The process stands before a call or behind it.
    fn stop(&mut self) -> anyhow::Result<()> {
        let Ok(mut registers) = ptrace::getregs(self.pid) else { return Ok(()) };
        let Some(pending) = self.pending.take() else {
            self.pending = Some(self.begins(&mut registers)?);
            return Ok(());
        };
        match pending {
            Pending::Returns(errno) => {
                registers.rax = -i64::from(errno) as u64;
                ptrace::setregs(self.pid, registers)?;
            }
            Pending::Syncs(path) if registers.rax == 0 => drop(self.undo.remove(&path)),
            Pending::Syncs(_) | Pending::Other => {}
        }
        Ok(())
    }

    fn begins(&mut self, registers: &mut libc::user_regs_struct) -> anyhow::Result<Pending> {
        let arguments = [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8];
        let Some((name, place)) = super::fault::call_of(registers.orig_rax as i64) else {
            return Ok(Pending::Other);
        };
        let Some(path) = self.path(place, arguments) else { return Ok(Pending::Other) };
        let Ok(inside) = path.strip_prefix(self.directory) else { return Ok(Pending::Other) };
        let call = Call { name, path: inside.display().to_string(), arguments };
        if call.is_left_out() {
            return Ok(Pending::Other);
        }
        let index = self.calls.len();
        self.calls.push(call.clone());
        if call.is_write() {
            self.remember(&path, &call)?;
        }
        if let Some(aim) = self.aim
            && (aim.index == index || self.aimed_name == Some(name))
        {
            if aim.lasts {
                self.aimed_name = Some(name);
            }
            if let Some(pending) = self.fail(aim.fault, &path, &call, registers)? {
                self.is_hit = true;
                return Ok(pending);
            }
        }
        Ok(if call.is_sync() { Pending::Syncs(path) } else { Pending::Other })
    }

    /// Changes a call that begins; none where the call cannot have this fault.
    fn fail(
        &mut self,
        fault: Fault,
        path: &Path,
        call: &Call,
        registers: &mut libc::user_regs_struct,
    ) -> anyhow::Result<Option<Pending>> {
        let errno = match fault {
            Fault::Short => {
                let size = call.arguments[2];
                if size < 2 {
                    return Ok(None);
                }
                let half = size / 2;
                registers.rdx = if half >= 512 { half - half % 512 } else { half };
                ptrace::setregs(self.pid, *registers)?;
                return Ok(Some(Pending::Other));
            }
            Fault::Errno(errno) => errno,
            Fault::Dropped(errno) => {
                self.take_back(path)?;
                errno
            }
        };
        // No call has this number.
        registers.orig_rax = u64::MAX;
        ptrace::setregs(self.pid, *registers)?;
        Ok(Some(Pending::Returns(errno)))
    }

    /// Keeps the bytes that a write replaces.
    fn remember(&mut self, path: &Path, call: &Call) -> anyhow::Result<()> {
        let offset = match call.name {
            "pwrite64" | "pwritev" => call.arguments[3],
            _ => self.position(call.arguments[0])?,
        };
        let mut old = vec![0; call.arguments[2].min(1 << 24) as usize];
        let file = File::open(path)?;
        let mut done = 0;
        while done < old.len() {
            match file.read_at(&mut old[done..], offset + done as u64)? {
                0 => break,
                size => done += size,
            }
        }
        self.undo.entry(path.to_owned()).or_default().push((offset, old));
        Ok(())
    }

    /// Takes back the writes to a file since its last sync; its length stays.
    fn take_back(&mut self, path: &Path) -> anyhow::Result<()> {
        let Some(writes) = self.undo.remove(path) else { return Ok(()) };
        let file = OpenOptions::new().write(true).open(path)?;
        for (offset, old) in writes.iter().rev() {
            file.write_all_at(old, *offset)?;
        }
        Ok(())
    }

    fn position(&self, descriptor: u64) -> anyhow::Result<u64> {
        let text = fs::read_to_string(format!("/proc/{}/fdinfo/{descriptor}", self.pid))?;
        let position = text.lines().find_map(|line| line.strip_prefix("pos:"));
        Ok(position.context("the position of a file")?.trim().parse()?)
    }

    /// The file that a call is about, if it is one.
    fn path(&self, place: Place, arguments: [u64; 5]) -> Option<PathBuf> {
        let of_descriptor =
            |descriptor: u64| fs::read_link(format!("/proc/{}/fd/{descriptor}", self.pid)).ok();
        match place {
            Place::Descriptor => of_descriptor(arguments[0]),
            Place::Path => Some(PathBuf::from(self.text(arguments[0]).ok()?)),
            Place::At => match self.text(arguments[1]).ok()?.as_str() {
                "" => of_descriptor(arguments[0]),
                text => Some(PathBuf::from(text)),
            },
        }
    }

    /// A text that ends with a zero byte.
    fn text(&self, address: u64) -> anyhow::Result<String> {
        if address == 0 {
            return Ok(String::new());
        }
        let memory = File::open(format!("/proc/{}/mem", self.pid))?;
        let mut text = Vec::new();
        while text.len() < 4_096 {
            let mut part = [0; 64];
            // A page at a time: the next page may not be mapped.
            let here = address + text.len() as u64;
            let size = (4_096 - here % 4_096).min(64) as usize;
            let size = memory.read_at(&mut part[..size], here)?;
            match part[..size].iter().position(|byte| *byte == 0) {
                Some(end) => {
                    text.extend_from_slice(&part[..end]);
                    return Ok(String::from_utf8(text)?);
                }
                None => text.extend_from_slice(&part[..size]),
            }
        }
        bail!("a path without end");
    }
}

/// Place where a call names its file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// Its first argument is a descriptor.
    Descriptor,
    /// Its first argument is a path.
    Path,
    /// Its first argument is a descriptor, its second one a path from there.
    At,
}

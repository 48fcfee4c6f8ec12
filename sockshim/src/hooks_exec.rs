//! exec, posix_spawn, system, popen, daemon: what starts another program image, with this one's descriptors.

#![allow(unsafe_code)]

use crate::image::{self, Image};
use crate::keep;
use crate::real::Real;
use crate::sys::{libc_ret, sys};
use crate::table::tables;
use core::ffi::{c_char, c_void};
use libc::{AT_FDCWD, FILE, c_int, pid_t};
use toe_core::app::adopt::Keep;

type Argv = *const *const c_char;

unsafe extern "C" {
    static environ: Argv;
}

/// The program's environment.
fn env() -> Argv {
    // SAFETY: libc's variable; reading it is what exec itself does.
    unsafe { environ }
}

// Looked up when the shim is loaded: a `vfork` child must not.
static EXECVPE: Real = Real::new(c"execvpe");
static FEXECVE: Real = Real::new(c"fexecve");
static SPAWN: Real = Real::new(c"posix_spawn");
static SPAWNP: Real = Real::new(c"posix_spawnp");
static SYSTEM: Real = Real::new(c"system");
static POPEN: Real = Real::new(c"popen");
static DAEMON: Real = Real::new(c"daemon");

/// What libc runs commands with.
fn shell() -> Image {
    image::at(AT_FDCWD, c"/bin/sh".as_ptr(), 0, env())
}

/// Looks up all of libc's functions.
pub fn resolve() {
    for real in [&EXECVPE, &FEXECVE, &SPAWN, &SPAWNP, &SYSTEM, &POPEN, &DAEMON] {
        real.get();
    }
}

/// Before another image takes this process's descriptors.
fn leave(also: &[c_int], image: impl FnOnce() -> Image) {
    if !tables().is_some_and(|t| t.any_locals()) {
        return;
    }
    match image() {
        Image::Shim => keep::at_exec(also, Keep::ForShim),
        Image::Plain => keep::at_exec(also, Keep::Relay),
        Image::Missing => {}
    }
}

#[unsafe(no_mangle)]
extern "C" fn execve(path: *const c_char, argv: Argv, envp: Argv) -> c_int {
    leave(&[], || image::at(AT_FDCWD, path, 0, envp));
    libc_ret(sys!(SYS_execve, path, argv, envp)) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn execv(path: *const c_char, argv: Argv) -> c_int {
    execve(path, argv, env())
}

#[unsafe(no_mangle)]
extern "C" fn execveat(dir: c_int, path: *const c_char, argv: Argv, envp: Argv, flags: c_int) -> c_int {
    leave(&[], || image::at(dir, path, flags, envp));
    libc_ret(sys!(SYS_execveat, dir, path, argv, envp, flags)) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn fexecve(fd: c_int, argv: Argv, envp: Argv) -> c_int {
    leave(&[], || image::at(fd, c"".as_ptr(), libc::AT_EMPTY_PATH, envp));
    // SAFETY: fexecve has this type.
    let real: extern "C" fn(c_int, Argv, Argv) -> c_int = unsafe { core::mem::transmute(FEXECVE.get()) };
    real(fd, argv, envp)
}

#[unsafe(no_mangle)]
extern "C" fn execvpe(file: *const c_char, argv: Argv, envp: Argv) -> c_int {
    leave(&[], || image::in_path(file, envp));
    // SAFETY: execvpe has this type.
    let real: extern "C" fn(*const c_char, Argv, Argv) -> c_int = unsafe { core::mem::transmute(EXECVPE.get()) };
    real(file, argv, envp)
}

#[unsafe(no_mangle)]
extern "C" fn execvp(file: *const c_char, argv: Argv) -> c_int {
    execvpe(file, argv, env())
}

type Spawn = extern "C" fn(*mut pid_t, *const c_char, *const c_void, *const c_void, Argv, Argv) -> c_int;

/// Both spawns: `image` looks the program up as the function will.
fn spawn(real: &Real, actions: *const c_void, image: impl FnOnce() -> Image) -> Spawn {
    leave(&crate::spawn::dup_sources(actions), image);
    // SAFETY: both posix_spawn functions have this type.
    unsafe { core::mem::transmute::<*mut c_void, Spawn>(real.get()) }
}

#[unsafe(no_mangle)]
extern "C" fn posix_spawn(
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const c_void,
    attr: *const c_void,
    argv: Argv,
    envp: Argv,
) -> c_int {
    let real = spawn(&SPAWN, actions, || image::at(AT_FDCWD, path, 0, envp));
    real(pid, path, actions, attr, argv, envp)
}

#[unsafe(no_mangle)]
extern "C" fn posix_spawnp(
    pid: *mut pid_t,
    file: *const c_char,
    actions: *const c_void,
    attr: *const c_void,
    argv: Argv,
    envp: Argv,
) -> c_int {
    let real = spawn(&SPAWNP, actions, || image::in_path(file, envp));
    real(pid, file, actions, attr, argv, envp)
}

#[unsafe(no_mangle)]
extern "C" fn system(command: *const c_char) -> c_int {
    if !command.is_null() {
        leave(&[], shell);
    }
    // SAFETY: system has this type.
    let real: extern "C" fn(*const c_char) -> c_int = unsafe { core::mem::transmute(SYSTEM.get()) };
    real(command)
}

#[unsafe(no_mangle)]
extern "C" fn popen(command: *const c_char, kind: *const c_char) -> *mut FILE {
    leave(&[], shell);
    // SAFETY: popen has this type.
    let real: extern "C" fn(*const c_char, *const c_char) -> *mut FILE = unsafe { core::mem::transmute(POPEN.get()) };
    let stream = real(command, kind);
    if !stream.is_null() {
        // SAFETY: a stream of libc's.
        crate::hooks_life::fresh(unsafe { libc::fileno(stream) });
    }
    stream
}

/// libc forks by itself (its handlers run), but puts /dev/null on the standard descriptors without calling `dup2`.
#[unsafe(no_mangle)]
extern "C" fn daemon(nochdir: c_int, noclose: c_int) -> c_int {
    // SAFETY: daemon has this type.
    let real: extern "C" fn(c_int, c_int) -> c_int = unsafe { core::mem::transmute(DAEMON.get()) };
    let r = real(nochdir, noclose);
    if r == 0 && noclose == 0 {
        (0..3).for_each(crate::hooks_life::fresh);
    }
    r
}

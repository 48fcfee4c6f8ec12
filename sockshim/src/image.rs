//! Will the program that is about to start load the shim? What the kernel and the dynamic loader will decide, found out before.
//!
//! Runs in `vfork` children: no heap, no locks.

#![allow(unsafe_code)]

use crate::sys::{self, sys};
use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr};
use libc::{AT_FDCWD, c_int};

/// What kind of program it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// It will load the shim.
    Shim,
    /// It will not: static, of another architecture or libc, set-user-ID, or LD_PRELOAD is gone.
    Plain,
    /// There is nothing to be executed.
    Missing,
}

/// Interpreters of interpreters (Linux: BINPRM_MAX_RECURSION).
const MAX_SCRIPTS: u32 = 5;
/// The dynamic loader of the libc that this shim is built for.
const LOADER: &[u8] = if cfg!(target_env = "musl") { b"ld-musl" } else { b"ld-linux" };
/// Bytes of a path.
const PATH_MAX: usize = 4096;

/// Path by which this library was loaded.
static OWN_PATH: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());
/// LD_PRELOAD named it; otherwise something that holds for every program did.
static BY_ENVIRONMENT: AtomicBool = AtomicBool::new(false);

/// At load: how did we come here?
pub fn remember() {
    let mut info = libc::Dl_info {
        dli_fname: core::ptr::null(),
        dli_fbase: core::ptr::null_mut(),
        dli_sname: core::ptr::null(),
        dli_saddr: core::ptr::null_mut(),
    };
    let here: extern "C" fn() -> bool = anchor;
    // SAFETY: an address of this library's; the name that comes back lives as long as the library.
    if unsafe { libc::dladdr(here as *const c_void, &mut info) } != 0 {
        OWN_PATH.store(info.dli_fname.cast_mut(), Release);
    }
    BY_ENVIRONMENT.store(crate::ctx::env(c"LD_PRELOAD").is_some_and(names_us), Relaxed);
}

extern "C" fn anchor() -> bool {
    true
}

fn base(path: &[u8]) -> &[u8] {
    path.rsplit(|&b| b == b'/').next().unwrap_or(path)
}

/// Does this value of LD_PRELOAD name this library, and can it be found?
fn names_us(value: &[u8]) -> bool {
    // SAFETY: null, or the loader's string.
    let Some(own) = (unsafe { OWN_PATH.load(Acquire).as_ref() }) else { return false };
    // SAFETY: as above.
    let own = base(unsafe { CStr::from_ptr(own) }.to_bytes());
    let found = |path: &[u8]| {
        let mut buf = [0u8; PATH_MAX];
        !path.contains(&b'/') || c_path(&mut buf, &[path]).is_some_and(|p| may(p, libc::R_OK))
    };
    value.split(|b| b" :".contains(b)).any(|word| base(word) == own && found(word))
}

/// Joins `parts` to a C string.
fn c_path<'a>(buf: &'a mut [u8; PATH_MAX], parts: &[&[u8]]) -> Option<&'a CStr> {
    let mut len = 0;
    for part in parts {
        buf.get_mut(len..len + part.len())?.copy_from_slice(part);
        len += part.len();
    }
    *buf.get_mut(len)? = 0;
    CStr::from_bytes_until_nul(buf).ok()
}

fn may(path: &CStr, access: c_int) -> bool {
    sys!(SYS_faccessat, AT_FDCWD, path.as_ptr(), access) == 0
}

/// The value of LD_PRELOAD in `envp`.
fn preload<'a>(envp: *const *const c_char) -> Option<&'a [u8]> {
    const NAME: &[u8] = b"LD_PRELOAD=";
    if envp.is_null() {
        return None;
    }
    for i in 0.. {
        // SAFETY: the program's environment for exec: C strings up to a null pointer.
        let word = unsafe {
            let word = *envp.add(i);
            if word.is_null() {
                return None;
            }
            CStr::from_ptr(word).to_bytes()
        };
        if let Some(value) = word.strip_prefix(NAME) {
            return Some(value);
        }
    }
    None
}

/// The program at `path`, relative to `dir`, in the environment `envp`.
pub fn at(dir: c_int, path: *const c_char, flags: c_int, envp: *const *const c_char) -> Image {
    if path.is_null() {
        return Image::Missing;
    }
    // SAFETY: the program's C string.
    let path = unsafe { CStr::from_ptr(path) };
    let named = BY_ENVIRONMENT.load(Relaxed);
    let kind = look(dir, path, flags, MAX_SCRIPTS);
    let preloaded = !named || preload(envp).is_some_and(names_us);
    if kind == Image::Shim && !preloaded { Image::Plain } else { kind }
}

/// The program that `execvp` would find.
pub fn in_path(file: *const c_char, envp: *const *const c_char) -> Image {
    if file.is_null() {
        return Image::Missing;
    }
    // SAFETY: the program's C string.
    let name = unsafe { CStr::from_ptr(file) }.to_bytes();
    if name.contains(&b'/') {
        return at(AT_FDCWD, file, 0, envp);
    }
    let mut buf = [0u8; PATH_MAX];
    for dir in crate::ctx::env(c"PATH").unwrap_or(b"/bin:/usr/bin").split(|&b| b == b':') {
        let dir = if dir.is_empty() { b"." } else { dir };
        if let Some(path) = c_path(&mut buf, &[dir, b"/", name])
            && may(path, libc::X_OK)
        {
            return at(AT_FDCWD, path.as_ptr(), 0, envp);
        }
    }
    Image::Missing
}

/// Would the dynamic loader of this libc run for it, and obey LD_PRELOAD?
fn look(dir: c_int, path: &CStr, flags: c_int, scripts: u32) -> Image {
    let empty = flags & libc::AT_EMPTY_PATH != 0 && path.is_empty();
    let fd = match empty {
        true => dir as isize,
        false => sys!(SYS_openat, dir, path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC, 0),
    };
    if fd < 0 {
        // What may be run but not read is run without anybody's library.
        let runs = sys!(SYS_faccessat, dir, path.as_ptr(), libc::X_OK) == 0;
        return if runs { Image::Plain } else { Image::Missing };
    }
    let kind = look_at(fd as c_int, scripts);
    if !empty {
        sys::close(fd as c_int);
    }
    kind
}

fn look_at(fd: c_int, scripts: u32) -> Image {
    let mut head = [0u8; 256];
    let n = read_at(fd, &mut head, 0);
    let head = &head[..n];
    if is_privileged(fd) {
        return Image::Plain;
    }
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|&b| b == b'\n').next().unwrap_or_default().trim_ascii_start();
        let interpreter = line.split(|b| b" \t\0".contains(b)).next().unwrap_or_default();
        let mut buf = [0u8; PATH_MAX];
        return match (scripts, c_path(&mut buf, &[interpreter])) {
            (1.., Some(path)) => look(AT_FDCWD, path, 0, scripts - 1),
            _ => Image::Missing,
        };
    }
    if head.starts_with(b"\x7fELF") {
        return if is_dynamic(fd, head) { Image::Shim } else { Image::Plain };
    }
    // The shell runs it, or a handler that only the kernel knows.
    if scripts > 0 { look(AT_FDCWD, c"/bin/sh", 0, 0) } else { Image::Plain }
}

fn read_at(fd: c_int, buf: &mut [u8], at: u64) -> usize {
    sys!(SYS_pread64, fd, buf.as_mut_ptr(), buf.len(), at).clamp(0, buf.len() as isize) as usize
}

/// Will it run with other rights than its caller's (the loader's AT_SECURE)?
fn is_privileged(fd: c_int) -> bool {
    let (uid, euid) = (sys!(SYS_getuid), sys!(SYS_geteuid));
    let (gid, egid) = (sys!(SYS_getgid), sys!(SYS_getegid));
    // SAFETY: plain integers; all zero is a value.
    let mut st: libc::stat = unsafe { core::mem::zeroed() };
    sys!(SYS_fstat, fd, &raw mut st);
    let set = |bit: u32, of: u32, own: isize| st.st_mode & bit != 0 && of as isize != own;
    let caps = sys!(SYS_fgetxattr, fd, c"security.capability".as_ptr(), 0, 0);
    uid != euid
        || gid != egid
        || set(libc::S_ISUID, st.st_uid, uid)
        || set(libc::S_ISGID, st.st_gid, gid)
        || (caps > 0 && uid != 0)
}

/// An ELF program of this architecture with this libc's loader as its interpreter.
fn is_dynamic(fd: c_int, head: &[u8]) -> bool {
    const CLASS_64: u8 = 2;
    const PT_INTERP: u32 = 3;
    const ENTRY: usize = 56;
    const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    let half = |at: usize| u16::from_ne_bytes([head[at], head[at + 1]]);
    if head.len() < 64 || head[4] != CLASS_64 || half(18) != MACHINE || usize::from(half(54)) != ENTRY {
        return false;
    }
    let mut table = [0u8; 64 * ENTRY];
    let len = table.len().min(usize::from(half(56)) * ENTRY);
    let n = read_at(fd, &mut table[..len], long(head, 32));
    let entry = table[..n].chunks_exact(ENTRY).find(|e| u32::from_ne_bytes([e[0], e[1], e[2], e[3]]) == PT_INTERP);
    let Some(entry) = entry else { return false };
    let mut name = [0u8; 256];
    let n = read_at(fd, &mut name, long(entry, 8));
    let name = name[..n.min(long(entry, 32) as usize)].split(|&b| b == 0).next().unwrap_or_default();
    base(name).starts_with(LOADER)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(path: &CStr) -> Image {
        look(AT_FDCWD, path, 0, MAX_SCRIPTS)
    }

    #[test]
    fn programs_are_told_apart() {
        // The test itself is a dynamic program of this libc; its debugger is not needed to know what a text file is.
        assert_eq!(kind(c"/proc/self/exe"), Image::Shim);
        assert_eq!(kind(c"/nonexistent/program"), Image::Missing);
        let dir = std::env::temp_dir().join(format!("toe-image-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = dir.join(name);
            std::fs::write(&path, bytes).unwrap();
            std::ffi::CString::new(path.into_os_string().into_encoded_bytes()).unwrap()
        };
        let script = write("script", b"#! /proc/self/exe -x\n");
        let lost = write("lost", b"#!/nonexistent/program\n");
        let mut head = [0u8; 4096];
        let fd = std::fs::File::open("/proc/self/exe").unwrap();
        let n = read_at(std::os::fd::AsRawFd::as_raw_fd(&fd), &mut head, 0);
        let mut other = head[..n].to_vec();
        other[4] = 1;
        let other = write("other", &other);
        let cut = write("cut", &head[..60]);
        let seen = [kind(&script), kind(&lost), kind(&other), kind(&cut)];
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(seen, [Image::Shim, Image::Missing, Image::Plain, Image::Plain]);
    }

    #[test]
    fn interpreters_do_not_go_round() {
        let dir = std::env::temp_dir().join(format!("toe-loop-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let path = dir.join("loop");
        std::fs::write(&path, format!("#!{}\n", path.display())).unwrap();
        let c = std::ffi::CString::new(path.into_os_string().into_encoded_bytes()).unwrap();
        let seen = kind(&c);
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(seen, Image::Missing);
    }
}

//! `dprintf` and its relatives: libc's own write to the descriptor without calling `write`.
//!
//! Rust cannot define functions with a variable number of arguments. Two small trampolines build the `va_list` that the
//! psABIs of x86-64 and arm64 describe and go on in `vdprintf`.

#![allow(unsafe_code)]

use crate::hooks_stdio::write_all;
use crate::real::real;
use crate::table::stream;
use libc::{c_char, c_int, c_void};

/// A `va_list` as C passes it: a pointer to its one element on both architectures.
pub type VaList = *mut c_void;

unsafe extern "C" {
    fn vasprintf(out: *mut *mut c_char, format: *const c_char, args: VaList) -> c_int;
    fn __vasprintf_chk(out: *mut *mut c_char, flag: c_int, format: *const c_char, args: VaList) -> c_int;
}

/// Writes a text that libc has made: its length, or -1.
fn put(fd: c_int, text: *mut c_char, len: c_int) -> c_int {
    if len < 0 {
        return len;
    }
    let done = write_all(fd, text.cast(), len as usize);
    // SAFETY: made by vasprintf.
    unsafe { libc::free(text.cast()) };
    if done == len as usize { len } else { -1 }
}

#[unsafe(no_mangle)]
extern "C" fn vdprintf(fd: c_int, format: *const c_char, args: VaList) -> c_int {
    if stream(fd).is_none()
        && let Some(call) = real!(vdprintf: extern "C" fn(c_int, *const c_char, VaList) -> c_int)
    {
        return call(fd, format, args);
    }
    let mut text = core::ptr::null_mut();
    // SAFETY: the program's format and arguments.
    let len = unsafe { vasprintf(&raw mut text, format, args) };
    put(fd, text, len)
}

#[unsafe(no_mangle)]
extern "C" fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, args: VaList) -> c_int {
    if stream(fd).is_none()
        && let Some(call) = real!(__vdprintf_chk: extern "C" fn(c_int, c_int, *const c_char, VaList) -> c_int)
    {
        return call(fd, flag, format, args);
    }
    let mut text = core::ptr::null_mut();
    // SAFETY: the program's format and arguments.
    let len = unsafe { __vasprintf_chk(&raw mut text, flag, format, args) };
    put(fd, text, len)
}

/// `trampoline!(name → target, named, list)`: `named` integer arguments, then the variable ones; `list` is the register of the
/// argument after the named ones.
///
/// System V psABI for x86-64, "Variable Argument Lists": {gp_offset, fp_offset, overflow_arg_area, reg_save_area}; `al`
/// says whether vector registers hold arguments. On the stack: the list at 0, the save area at 32.
#[cfg(target_arch = "x86_64")]
macro_rules! trampoline {
    ($name:ident, $target:ident, $named:literal, $list:literal, $_arm:literal) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "sub rsp, 216",
                ".cfi_adjust_cfa_offset 216",
                "mov [rsp + 48], rdx",
                "mov [rsp + 56], rcx",
                "mov [rsp + 64], r8",
                "mov [rsp + 72], r9",
                "test al, al",
                "je 2f",
                "movaps [rsp + 80], xmm0",
                "movaps [rsp + 96], xmm1",
                "movaps [rsp + 112], xmm2",
                "movaps [rsp + 128], xmm3",
                "movaps [rsp + 144], xmm4",
                "movaps [rsp + 160], xmm5",
                "movaps [rsp + 176], xmm6",
                "movaps [rsp + 192], xmm7",
                "2:",
                concat!("mov dword ptr [rsp], 8 * ", $named),
                "mov dword ptr [rsp + 4], 48",
                "lea rax, [rsp + 224]",
                "mov [rsp + 8], rax",
                "lea rax, [rsp + 32]",
                "mov [rsp + 16], rax",
                concat!("mov ", $list, ", rsp"),
                "call {target}",
                "add rsp, 216",
                ".cfi_adjust_cfa_offset -216",
                "ret",
                ".cfi_endproc",
                target = sym $target,
            )
        }
    };
}

/// The same by AAPCS64, appendix B: {stack, gr_top, vr_top, gr_offs, vr_offs}. On the stack: frame record at 0, the list at
/// 16, general registers at 48, vector registers at 112.
#[cfg(target_arch = "aarch64")]
macro_rules! trampoline {
    ($name:ident, $target:ident, $named:literal, $_x86:literal, $list:literal) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-256]!",
                ".cfi_def_cfa_offset 256",
                ".cfi_offset x29, -256",
                ".cfi_offset x30, -248",
                "mov x29, sp",
                "stp x2, x3, [sp, #64]",
                "stp x4, x5, [sp, #80]",
                "stp x6, x7, [sp, #96]",
                "stp q0, q1, [sp, #112]",
                "stp q2, q3, [sp, #144]",
                "stp q4, q5, [sp, #176]",
                "stp q6, q7, [sp, #208]",
                "add x9, sp, #256",
                "str x9, [sp, #16]",
                "add x9, sp, #112",
                "str x9, [sp, #24]",
                "add x9, sp, #240",
                "str x9, [sp, #32]",
                concat!("mov w9, #(8 * ", $named, " - 64)"),
                "str w9, [sp, #40]",
                "mov w9, #-128",
                "str w9, [sp, #44]",
                concat!("add ", $list, ", sp, #16"),
                "bl {target}",
                "ldp x29, x30, [sp], #256",
                "ret",
                ".cfi_endproc",
                target = sym $target,
            )
        }
    };
}

pub(crate) use trampoline;

trampoline!(dprintf, vdprintf, "2", "rdx", "x2");
trampoline!(__dprintf_chk, __vdprintf_chk, "3", "rcx", "x3");

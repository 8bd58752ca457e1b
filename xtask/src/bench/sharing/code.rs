//! An instruction: its effect on the flow of its thread, and the memory that it uses.

use anyhow::{Result, ensure};
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register, UsedMemory,
};
use nix::libc::user_regs_struct;

/// Longest instruction.
pub(super) const LONGEST_BYTES: usize = 15;

/// Memory that an instruction uses in one execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) address: u64,
    pub(super) len_bytes: u64,
    pub(super) reads: bool,
    pub(super) writes: bool,
}

/// Effect of an instruction on the flow of its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Inside,
    Call,
    Return,
    /// A system call.
    Kernel,
    /// A string instruction, which traps once for each element.
    Repeated,
}

/// A decoded instruction.
pub(super) struct Code {
    pub(super) flow: Flow,
    /// Whether it is an atomic read-modify-write.
    pub(super) is_atomic: bool,
    /// Address of the instruction behind it.
    pub(super) next: u64,
    /// Size of an element of a repeated one, which `used` does not have.
    element_bytes: usize,
    used: Vec<UsedMemory>,
}

impl Code {
    pub(super) fn decode(bytes: &[u8], address: u64) -> Result<Self> {
        let code = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
        ensure!(!code.is_invalid(), "no instruction at {address:#x}: {bytes:x?}");
        let mut factory = InstructionInfoFactory::new();
        let used = factory.info(&code).used_memory().to_vec();
        Ok(Self {
            flow: flow(&code),
            is_atomic: is_atomic(&code),
            next: code.next_ip(),
            element_bytes: code.memory_size().size(),
            used,
        })
    }

    /// The memory that it uses with these values of registers.
    pub(super) fn accesses(
        &self,
        value: impl Fn(Register) -> Option<u64>,
    ) -> impl Iterator<Item = Access> {
        let repeated = (self.flow == Flow::Repeated).then(|| value(Register::RCX)).flatten();
        let repeated_bytes = repeated.map(|count| count * self.element_bytes as u64);
        self.used.iter().filter_map(move |used| {
            let (reads, writes) = match used.access() {
                OpAccess::Read | OpAccess::CondRead => (true, false),
                OpAccess::Write | OpAccess::CondWrite => (false, true),
                OpAccess::ReadWrite | OpAccess::ReadCondWrite => (true, true),
                OpAccess::None | OpAccess::NoMemAccess => return None,
            };
            let address = used.virtual_address(0, |register, _, _| value(register))?;
            let len_bytes = repeated_bytes.unwrap_or(used.memory_size().size() as u64);
            Some(Access { address, len_bytes, reads, writes })
        })
    }
}

fn flow(code: &Instruction) -> Flow {
    match code.flow_control() {
        FlowControl::Call | FlowControl::IndirectCall if code.mnemonic() == Mnemonic::Syscall => {
            Flow::Kernel
        }
        FlowControl::Call | FlowControl::IndirectCall => Flow::Call,
        FlowControl::Return => Flow::Return,
        _ if code.is_string_instruction() && code.has_rep_prefix() => Flow::Repeated,
        _ => Flow::Inside,
    }
}

/// An exchange with memory is atomic without a prefix.
fn is_atomic(code: &Instruction) -> bool {
    let has_memory = (0..code.op_count()).any(|operand| code.op_kind(operand) == OpKind::Memory);
    code.has_lock_prefix() || (code.mnemonic() == Mnemonic::Xchg && has_memory)
}

/// A general register, or the start of a segment.
pub(super) fn value(register: Register, regs: &user_regs_struct) -> Option<u64> {
    Some(match register.full_register() {
        Register::RAX => regs.rax,
        Register::RBX => regs.rbx,
        Register::RCX => regs.rcx,
        Register::RDX => regs.rdx,
        Register::RSI => regs.rsi,
        Register::RDI => regs.rdi,
        Register::RBP => regs.rbp,
        Register::RSP => regs.rsp,
        Register::R8 => regs.r8,
        Register::R9 => regs.r9,
        Register::R10 => regs.r10,
        Register::R11 => regs.r11,
        Register::R12 => regs.r12,
        Register::R13 => regs.r13,
        Register::R14 => regs.r14,
        Register::R15 => regs.r15,
        Register::FS => regs.fs_base,
        Register::GS => regs.gs_base,
        Register::CS | Register::DS | Register::ES | Register::SS => 0,
        // An index in a vector register: gathers, which no shared structure is read with.
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes an instruction at 0x1000; RDI is 0x80, and RCX is 3.
    fn decoded(bytes: &[u8]) -> (Code, Vec<Access>) {
        let code = Code::decode(bytes, 0x1000).expect("an instruction");
        let value = |register| match register {
            Register::RDI => Some(0x80),
            Register::RCX => Some(3),
            _ => Some(0),
        };
        let accesses = code.accesses(value).collect();
        (code, accesses)
    }

    #[test]
    fn atomic_instructions_are_those_with_a_prefix_and_exchanges_with_memory() {
        let (add, accesses) = decoded(&[0xf0, 0x48, 0x83, 0x47, 0x08, 0x01]); // lock add [rdi+8], 1
        assert!(add.is_atomic);
        let all = Access { address: 0x88, len_bytes: 8, reads: true, writes: true };
        assert_eq!(accesses, [all]);
        assert!(decoded(&[0x87, 0x07]).0.is_atomic, "xchg [rdi], eax");
        assert!(!decoded(&[0x87, 0xc7]).0.is_atomic, "xchg edi, eax");
        assert!(!decoded(&[0x48, 0x83, 0x47, 0x08, 0x01]).0.is_atomic, "add [rdi+8], 1");
    }

    #[test]
    fn repeated_store_uses_all_its_elements() {
        let (stores, accesses) = decoded(&[0xf3, 0x48, 0xab]); // rep stosq
        assert_eq!((stores.flow, stores.next), (Flow::Repeated, 0x1003));
        assert!(accesses.iter().all(|access| access.writes && access.len_bytes == 24));
        assert_eq!(accesses.len(), 1);
    }

    #[test]
    fn calls_into_the_kernel_are_told_from_other_calls() {
        assert_eq!(decoded(&[0x0f, 0x05]).0.flow, Flow::Kernel);
        assert_eq!(decoded(&[0xe8, 0, 0, 0, 0]).0.flow, Flow::Call);
        assert_eq!(decoded(&[0xc3]).0.flow, Flow::Return);
        assert!(decoded(&[0x48, 0x8d, 0x47, 0x08]).1.is_empty(), "lea uses no memory");
    }
}

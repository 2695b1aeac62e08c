//! Tar archives made by hand, including invalid ones.

/// One entry: name, type, stated size, content, link.
pub fn entry(name: &str, kind: u8, content: &[u8], link: &str) -> Vec<u8> {
    with_size(name, kind, &format!("{:011o}\0", content.len()), content, link)
}

pub fn file(name: &str, content: &[u8]) -> Vec<u8> {
    entry(name, b'0', content, "")
}

pub fn with_size(name: &str, kind: u8, size: &str, content: &[u8], link: &str) -> Vec<u8> {
    let mut block = vec![0u8; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[100..108].copy_from_slice(b"0000644\0");
    block[108..116].copy_from_slice(b"0000000\0");
    block[116..124].copy_from_slice(b"0000000\0");
    block[124..124 + size.len()].copy_from_slice(size.as_bytes());
    block[136..148].copy_from_slice(b"00000000000\0");
    block[148..156].fill(b' ');
    block[156] = kind;
    block[157..157 + link.len()].copy_from_slice(link.as_bytes());
    block[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block.extend_from_slice(content);
    block.resize(block.len().next_multiple_of(512), 0);
    block
}

pub fn end() -> Vec<u8> {
    vec![0; 1024]
}

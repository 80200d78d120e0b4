//! Names of secrets with types, and numbers beside words.
pub const PWD_KIND: u16 = 4097u16;
pub const TOKEN_KIND: _bindgen_ty_7 = _bindgen_ty_7::IFLA_TOKEN;
pub const STORAGE_KEY: X509KeyUsageFlags2 = 4i32;
pub const TX_RING: u32 = 2147483648;
pub const CALL_RING: u64 = 6442450944;

pub struct Prompt {
    pub password: [u16; 256],
    pub log_passwd: __u32,
    pub api_key: super::super::core::PCWSTR,
    pub secret: windows_core::PCSTR,
}

fn text(node: Node) -> Node {
    let number = 5551234567;
    assert_eq!(number, 34798324);
    Node { dot2_token: node.dot2_token, or2_token: node.or2_token, line: 1755302400 }
}

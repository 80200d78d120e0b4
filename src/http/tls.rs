//! The certificate that the listener shows; it can be replaced while connections are open.

use std::{fmt::Display, fs, os::unix::fs::PermissionsExt, path::Path, sync::Arc};

use arc_swap::ArcSwap;
use rustls::{
    InconsistentKeys, ServerConfig,
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio_rustls::TlsAcceptor;

use crate::config::Tls;

/// The certificate that the listener shows.
#[derive(Debug)]
pub(crate) struct Certificates {
    current: Arc<CurrentCertificate>,
    config: Arc<ServerConfig>,
}

/// A certificate with its key, read and found to fit.
#[derive(Clone, Debug)]
pub(crate) struct Certificate(Arc<CertifiedKey>);

/// The TLS files cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
#[error("tls: {file}: {reason}")]
pub struct InvalidTls {
    /// Which file.
    pub file: String,
    /// What is wrong with it.
    pub reason: String,
}

impl InvalidTls {
    fn new(path: &Path, reason: &dyn Display) -> Self {
        Self {
            file: path.display().to_string(),
            reason: reason.to_string(),
        }
    }
}

#[derive(Debug)]
struct CurrentCertificate(ArcSwap<CertifiedKey>);

impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

impl Certificate {
    /// Reads the files.
    ///
    /// # Errors
    /// When one of them cannot be used, or they do not fit each other.
    pub(crate) fn read(tls: &Tls) -> Result<Self, InvalidTls> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&tls.cert)
            .and_then(Iterator::collect)
            .map_err(|error| InvalidTls::new(&tls.cert, &pem_error_reason(&error)))?;
        if chain.is_empty() {
            return Err(InvalidTls::new(&tls.cert, &missing_reason("certificate")));
        }
        check_key_permissions(&tls.key)?;
        let key = PrivateKeyDer::from_pem_file(&tls.key).map_err(|error| {
            let why = if !matches!(error, pem::Error::NoItemsFound) {
                pem_error_reason(&error)
            } else if is_encrypted(&tls.key) {
                "the private key is encrypted, which is not supported; decrypt it and restrict the \
                 file to its owner"
                    .to_owned()
            } else {
                missing_reason("private key")
            };
            InvalidTls::new(&tls.key, &why)
        })?;
        let certified = CertifiedKey::from_der(chain, key, &ring::default_provider());
        let certified = certified.map_err(|error| {
            let mismatch = rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch);
            if error != mismatch {
                return InvalidTls::new(&tls.cert, &error);
            }
            let cert = tls.cert.display();
            let why = format!("it does not match the certificate in {cert}");
            InvalidTls::new(&tls.key, &why)
        })?;
        Ok(Self(Arc::new(certified)))
    }
}

/// Refuses a private key that is not its owner's alone. Its group may read it: volumes of containers, and
/// systems with a group for such keys, have it so.
fn check_key_permissions(key: &Path) -> Result<(), InvalidTls> {
    let Ok(known) = fs::metadata(key) else {
        // Whoever opens it says why.
        return Ok(());
    };
    let mode = known.permissions().mode() & 0o777;
    if mode & 0o027 == 0 {
        return Ok(());
    }
    let why = format!(
        "the private key is accessible by other users (mode {mode:04o}): run `chmod \
        600`"
    );
    Err(InvalidTls::new(key, &why))
}

/// What is said of a file that cannot be read as PEM.
fn pem_error_reason(error: &pem::Error) -> String {
    let line = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match error {
        pem::Error::Io(error) => error.to_string(),
        pem::Error::MissingSectionEnd { end_marker } => format!(
            "truncated PEM: a section does not end with `-----END {}-----`",
            line(end_marker)
        ),
        pem::Error::IllegalSectionStart { .. } => {
            "invalid PEM: a line starts with `-----BEGIN` and does not end with `-----`".to_owned()
        }
        pem::Error::Base64Decode(_)
        | pem::Error::NoItemsFound
        | pem::Error::SectionTooLarge
        | _ => error.to_string(),
    }
}

fn is_encrypted(key: &Path) -> bool {
    let text = fs::read_to_string(key).unwrap_or_default();
    text.contains("-----BEGIN ENCRYPTED PRIVATE KEY-----")
        || text.contains("Proc-Type: 4,ENCRYPTED")
}

/// What is said of a file in which there is no `what`.
fn missing_reason(what: &str) -> String {
    let label = what.to_ascii_uppercase();
    format!("the file contains no PEM {what} (`-----BEGIN {label}-----`)")
}

impl Certificates {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// As [`Certificate::read`].
    pub(super) fn open(tls: &Tls) -> Result<Self, InvalidTls> {
        let Certificate(first) = Certificate::read(tls)?;
        let shown = Arc::new(CurrentCertificate(ArcSwap::new(first)));
        let mut config = ServerConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .map_err(|error| InvalidTls::new(&tls.cert, &error))?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&shown) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self {
            current: shown,
            config: Arc::new(config),
        })
    }

    /// Shows `certificate` to every connection from now on; whether it is another one.
    pub(crate) fn replace(&self, certificate: Certificate) -> bool {
        let Certificate(new) = certificate;
        let is_another = self.current.0.load().cert != new.cert;
        self.current.0.store(new);
        is_another
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.config))
    }
}

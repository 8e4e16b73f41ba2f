package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
)

const validity = 10 * 365 * 24 * time.Hour

// runKeys writes what servers and clients prove themselves with into a directory: an operator's and an account's JWT
// with a user's credentials, a user's nkey, and certificates of one authority. It prints the public keys as one line.
func runKeys(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: nats keys DIR")
	}
	dir := args[0]
	public, err := writeJWTs(dir)
	if err != nil {
		return err
	}
	if err := writeCertificates(dir); err != nil {
		return err
	}
	return printJSON(public)
}

func writeJWTs(dir string) (map[string]string, error) {
	operator, err := nkeys.CreateOperator()
	if err != nil {
		return nil, err
	}
	account, err := nkeys.CreateAccount()
	if err != nil {
		return nil, err
	}
	system, err := nkeys.CreateAccount()
	if err != nil {
		return nil, err
	}
	user, err := nkeys.CreateUser()
	if err != nil {
		return nil, err
	}
	single, err := nkeys.CreateUser()
	if err != nil {
		return nil, err
	}
	operatorKey, _ := operator.PublicKey()
	accountKey, _ := account.PublicKey()
	systemKey, _ := system.PublicKey()
	userKey, _ := user.PublicKey()
	singleKey, _ := single.PublicKey()

	operatorClaims := jwt.NewOperatorClaims(operatorKey)
	operatorClaims.SystemAccount = systemKey
	operatorJWT, err := operatorClaims.Encode(operator)
	if err != nil {
		return nil, err
	}
	systemJWT, err := jwt.NewAccountClaims(systemKey).Encode(operator)
	if err != nil {
		return nil, err
	}
	claims := jwt.NewAccountClaims(accountKey)
	claims.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1}
	accountJWT, err := claims.Encode(operator)
	if err != nil {
		return nil, err
	}
	userJWT, err := jwt.NewUserClaims(userKey).Encode(account)
	if err != nil {
		return nil, err
	}
	seed, err := user.Seed()
	if err != nil {
		return nil, err
	}
	credentials, err := jwt.FormatUserConfig(userJWT, seed)
	if err != nil {
		return nil, err
	}
	singleSeed, err := single.Seed()
	if err != nil {
		return nil, err
	}
	resolver := fmt.Sprintf("operator: %s\nsystem_account: %s\nresolver: MEMORY\nresolver_preload: {\n  %s: %s\n  %s: %s\n}\n",
		operatorJWT, systemKey, accountKey, accountJWT, systemKey, systemJWT)
	for name, text := range map[string][]byte{
		"user.creds": credentials, "resolver.conf": []byte(resolver), "nkey.seed": singleSeed,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return nil, err
		}
	}
	return map[string]string{"nkey": singleKey}, nil
}

// writeCertificates writes ca.crt, and server and client certificates of it with their keys.
func writeCertificates(dir string) error {
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(validity),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if err := writeCertificate(dir, "ca", authority, authority, authorityKey, authorityKey); err != nil {
		return err
	}
	for i, name := range []string{"server", "client"} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		certificate := &x509.Certificate{
			SerialNumber: big.NewInt(int64(i) + 2), Subject: pkix.Name{CommonName: name},
			NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
			KeyUsage:    x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			DNSNames:    []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		}
		if err := writeCertificate(dir, name, certificate, authority, key, authorityKey); err != nil {
			return err
		}
	}
	return nil
}

func writeCertificate(dir, name string, certificate, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) error {
	signed, err := x509.CreateCertificate(rand.Reader, certificate, parent, &key.PublicKey, parentKey)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	for suffix, block := range map[string]*pem.Block{
		".crt": {Type: "CERTIFICATE", Bytes: signed},
		".key": {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(filepath.Join(dir, name+suffix), pem.EncodeToMemory(block), 0o600); err != nil {
			return err
		}
	}
	return nil
}

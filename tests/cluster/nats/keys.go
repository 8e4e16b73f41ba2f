package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"deltabus.dev/cluster/internal/tool"
)

// runKeys writes credentials of servers and clients into a directory: an operator's and an account's JWT
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
	if err := tool.WriteCertificates(dir, "server", "client"); err != nil {
		return err
	}
	return tool.PrintJSON(public)
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

// argo-cd-diff compares objects as Argo CD does. It reads {"desired": [...], "live": [...]}, both
// in the same order, from standard input, and prints for each object that Argo CD finds out of sync
// one line of JSON with the live and the predicted object.
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"

	"github.com/argoproj/argo-cd/gitops-engine/v3/pkg/diff"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func main() {
	var input struct{ Desired, Live []*unstructured.Unstructured }
	if err := json.NewDecoder(os.Stdin).Decode(&input); err != nil {
		log.Fatal(err)
	}
	output := json.NewEncoder(os.Stdout)
	for i, desired := range input.Desired {
		result, err := diff.Diff(context.Background(), desired, input.Live[i])
		if err != nil {
			log.Fatal(err)
		}
		if !result.Modified {
			continue
		}
		states := map[string]json.RawMessage{"live": result.NormalizedLive, "predicted": result.PredictedLive}
		if err := output.Encode(states); err != nil {
			log.Fatal(err)
		}
	}
}

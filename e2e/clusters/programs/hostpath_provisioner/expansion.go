package main

import (
	"context"
	"encoding/json"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// expandAll continues the expansion of each bound claim that requests more than it has.
func (p *provisioner) expandAll(ctx context.Context) {
	claims, _ := p.claims.List(labels.Everything())
	for _, claim := range claims {
		wanted := claim.Spec.Resources.Requests[v1.ResourceStorage]
		if claim.Status.Phase != v1.ClaimBound || wanted.Cmp(claim.Status.Capacity[v1.ResourceStorage]) <= 0 {
			continue
		}
		volume, err := p.volumes.Get(claim.Spec.VolumeName)
		if err != nil || !p.provisioned(volume) {
			continue
		}
		if err := p.expand(ctx, claim, volume, wanted); err != nil {
			klog.ErrorS(err, "cannot expand", "claim", klog.KObj(claim))
		}
	}
}

// expand does the next step, as the external-resizer and a kubelet do: the condition Resizing, the
// volume's capacity, the claim's.
func (p *provisioner) expand(
	ctx context.Context, claim *v1.PersistentVolumeClaim, volume *v1.PersistentVolume,
	wanted resource.Quantity,
) error {
	class, err := p.classes.Get(volume.Spec.StorageClassName)
	if err != nil {
		return err
	}
	parameters, err := parse(class)
	if err != nil {
		return err
	}
	current := condition(claim)
	allocated := claim.Status.AllocatedResources[v1.ResourceStorage]
	if current == nil || allocated.Cmp(wanted) != 0 {
		return p.patchStatus(ctx, claim, started(wanted))
	}
	if time.Since(current.LastTransitionTime.Time) < parameters.expandDelay {
		return nil
	}
	if parameters.expandError != "" {
		if current.Type == v1.PersistentVolumeClaimResizing {
			p.events.Event(claim, v1.EventTypeWarning, "VolumeResizeFailed", parameters.expandError)
			return p.patchStatus(ctx, claim, failed(wanted, parameters.expandError))
		}
		return nil
	}
	size := parameters.rounded(wanted)
	grown := map[string]any{"spec": map[string]any{"capacity": map[string]any{"storage": &size}}}
	patch, _ := json.Marshal(grown)
	volumes := p.client.CoreV1().PersistentVolumes()
	if _, err := volumes.Patch(
		ctx, volume.Name, types.MergePatchType, patch, metav1.PatchOptions{},
	); err != nil {
		return err
	}
	if err := p.patchStatus(ctx, claim, finished(size)); err != nil {
		return err
	}
	p.events.Eventf(claim, v1.EventTypeNormal, "VolumeResizeSuccessful", "Resized to %s", &size)
	return nil
}

func (p *provisioner) patchStatus(
	ctx context.Context, claim *v1.PersistentVolumeClaim, status map[string]any,
) error {
	patch, _ := json.Marshal(map[string]any{"status": status})
	claims := p.client.CoreV1().PersistentVolumeClaims(claim.Namespace)
	_, err := claims.Patch(
		ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status",
	)
	return err
}

// condition returns the claim's condition Resizing or ControllerResizeError.
func condition(claim *v1.PersistentVolumeClaim) *v1.PersistentVolumeClaimCondition {
	for i, each := range claim.Status.Conditions {
		if each.Type == v1.PersistentVolumeClaimResizing || each.Type == "ControllerResizeError" {
			return &claim.Status.Conditions[i]
		}
	}
	return nil
}

func started(wanted resource.Quantity) map[string]any {
	return map[string]any{
		"allocatedResources":        map[string]any{"storage": &wanted},
		"allocatedResourceStatuses": map[string]any{"storage": "ControllerResizeInProgress"},
		"conditions":                conditions("Resizing", ""),
	}
}

func failed(wanted resource.Quantity, message string) map[string]any {
	return map[string]any{
		"allocatedResources":        map[string]any{"storage": &wanted},
		"allocatedResourceStatuses": map[string]any{"storage": "ControllerResizeInfeasible"},
		"conditions":                conditions("ControllerResizeError", message),
	}
}

func finished(size resource.Quantity) map[string]any {
	return map[string]any{
		"capacity":                  map[string]any{"storage": &size},
		"allocatedResources":        map[string]any{"storage": &size},
		"allocatedResourceStatuses": nil,
		"conditions":                []any{},
	}
}

func conditions(kind, message string) []v1.PersistentVolumeClaimCondition {
	return []v1.PersistentVolumeClaimCondition{{
		Type:               v1.PersistentVolumeClaimConditionType(kind),
		Status:             v1.ConditionTrue,
		LastTransitionTime: metav1.Now(),
		Message:            message,
	}}
}
